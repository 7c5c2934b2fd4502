"""Failover: a primary with a standby, an application and workers on a URL that names both, and the primary killed.

- `pair`: the two servers, what holds replication up, the kill and the promotion
- `app`: the processes: workers with handlers of both colours, and applications that enqueue, sync and async
- `scene`: one run, from the first enqueue to the last job's end, and what came of it
"""
