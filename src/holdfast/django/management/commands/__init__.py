"""The commands by their names: `manage.py holdfast`. What they share with others belongs to `cli`."""
