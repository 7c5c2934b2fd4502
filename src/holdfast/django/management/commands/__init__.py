"""The commands by their names: `manage.py holdfast` is Holdfast's whole command line.

What a command does to rows belongs elsewhere.
"""
