"""The demo: an order shop whose workers are killed, and the count that shows that nothing was lost or doubled.

The shop is written as an application would be, with the public names only; the story, the screen and the proof are
beside it. Nothing but the command line imports from here, so what another room could use does not belong here.
"""

from holdfast.demo.story import run

__all__ = ["run"]
