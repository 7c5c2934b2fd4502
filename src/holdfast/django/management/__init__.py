"""Commands of `manage.py`: thin, because what they do belongs to the command line (`cli`)."""
