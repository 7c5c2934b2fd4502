"""The queue tables of InitPHP Queue's PDO transport: envelopes, flows and dead letters."""
