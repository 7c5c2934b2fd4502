"""No models: the tables are Holdfast's own. With this file Django tells the application of migrations and flushes."""
