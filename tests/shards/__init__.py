"""Several stores as one application."""
