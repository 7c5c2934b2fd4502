"""Tables that programs in other languages share: `hf.foreign.pdo(…)` and `hf.foreign.durable(…)`.

Foreign words (urn, reserve, ack, grp, step) stay inside this package.
"""
