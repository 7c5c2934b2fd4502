"""The outbox table of Airlock, a library for Node: its messages, flows and dead letters.

What is written here is read by Airlock's own relay, which may run beside ours (`docs/contracts/airlock.md`). What
another kind of foreign tables could use as well does not belong here, but into `foreign`.
"""
