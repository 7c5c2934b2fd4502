"""The demo: an order shop whose workers are killed, and the count that shows that nothing was lost or doubled."""

from holdfast.demo.story import run

__all__ = ["run"]
