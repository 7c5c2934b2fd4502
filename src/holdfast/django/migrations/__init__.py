"""Django's migrations: one for each version of Holdfast's tables, under the same name as its SQL.

What a version changes does not belong here: it stands in `store/dialects/migrations`, and is run from there.
"""
