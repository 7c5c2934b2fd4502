"""The tables through which a durable engine dispatches remote steps."""
