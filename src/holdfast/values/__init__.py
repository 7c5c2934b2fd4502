"""Plain values, and what can be worked out from them alone: rows, options, retries, ids, payloads, error records.

Nothing here reads a clock of the database, opens a connection or knows of a worker. What needs SQL belongs to a
surface (`jobs`, `foreign`), what needs a connection to `store`.
"""
