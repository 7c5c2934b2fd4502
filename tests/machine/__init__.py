"""A state machine: operations drawn at random, each held against a model in plain Python.

`model` says what the tables promise, `machine` draws operations and `ground` runs them as flows, with a clock that only
it moves: no threads, no sleeps, and a failure is a short list of steps. `make machine EXAMPLES=500` is the long form.
"""
