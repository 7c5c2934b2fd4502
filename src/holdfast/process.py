"""The old place of `holdfast.worker.process`: what stood here is still imported from here."""

from holdfast.worker.process import main as main
from holdfast.worker.process import run_one as run_one
