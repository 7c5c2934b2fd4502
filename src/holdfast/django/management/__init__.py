"""What Django looks for below `manage.py`: its commands, and nothing else.

They are thin, because what they do belongs to the command line (`cli`).
"""
