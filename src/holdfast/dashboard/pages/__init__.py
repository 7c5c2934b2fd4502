"""One module for each page: it asks, and hands what it heard to a template of its name.

Nothing that writes belongs here: that is an action. What a page asks is a flow, and belongs to a desk or to `observe`.
"""
