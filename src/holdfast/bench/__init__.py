"""The benchmark behind `holdfast bench`: Holdfast beside a raw-SQL loop with the same driver, in the same run.

What measures, and what is measured beside us, belongs here; each database may have its own file. Options and printing
belong to `cli/bench.py`, other queues to compare with to the tests. Nothing but the command line imports from here.
"""
