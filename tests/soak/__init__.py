"""A long run at a fixed rate, on two shards, while everything that can go wrong does: `make soak`.

Each shard is a PostgreSQL server, the first one with a synchronous standby; workers and the application reach them
through proxies. Workers are killed, connections cut, keys move to the other shard, and the first server fails over. All
processes write down what they do, and what finished is read before it is pruned, so that at the end every promise is
held against the whole run, and memory, latency and tables can be seen over time.
"""
