"""Django's migrations: one for each version of Holdfast's tables, under the same name as its SQL."""
