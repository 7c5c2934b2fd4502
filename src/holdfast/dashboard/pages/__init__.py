"""One module for each page: it asks, and hands what it heard to a template of its name."""
