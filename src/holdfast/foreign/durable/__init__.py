"""The tables through which a durable engine dispatches remote steps, and reads their results.

Only the side of a worker is here: retries, runs and what failed belong to the engine. What another kind of foreign
tables could use as well does not belong here, but into `foreign`.
"""
