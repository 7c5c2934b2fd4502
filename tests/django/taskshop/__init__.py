"""A small Django project whose work is tasks, for the tests: `TASKSHOP` in the environment says on which database."""
