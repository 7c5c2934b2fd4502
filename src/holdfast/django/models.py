"""No models: the tables are Holdfast's own. Django tells an application of a migration, or a flush, if it has this file."""
