"""The queue tables of InitPHP Queue's PDO transport: envelopes, flows and dead letters.

What is written here is read by PHP programs, to the byte (`docs/contracts/`). What another kind of foreign tables could
use as well does not belong here, but into `foreign`.
"""
