"""What happened and what waits, in numbers: statistics of workers, samples of queues, and how they are read.

Workers count and time attempts (`tallies.py`) and write that with their beat; one worker for all samples the queues
(`sampling.py`), and one merges old rows (`keeping.py`). Pages, metrics and `doctor` read it (`history.py`). No query
here reads all finished rows, or all that waits: counts stop at `COUNTED`.

Numbers belong here, and how they are kept and read. When they are written belongs to the worker's rounds, what is told
of one job to `events`, and how they are drawn to `dashboard`.
"""

from holdfast.observe.buckets import BOUNDS as BOUNDS
from holdfast.observe.buckets import Histogram as Histogram
from holdfast.observe.counting import COUNTED as COUNTED
from holdfast.observe.counting import Depth as Depth
from holdfast.observe.counting import Sample as Sample
from holdfast.observe.counting import shown as shown
from holdfast.observe.figures import OUTCOMES as OUTCOMES
from holdfast.observe.figures import Figures as Figures
from holdfast.observe.figures import Folded as Folded
from holdfast.observe.history import History as History
from holdfast.observe.history import Point as Point
from holdfast.observe.history import history as history
from holdfast.observe.history import latest as latest
from holdfast.observe.keeping import add as add
from holdfast.observe.keeping import merge as merge
from holdfast.observe.keeping import note as note
from holdfast.observe.keeping import prune as prune
from holdfast.observe.sampling import sample as sample
from holdfast.observe.tallies import Reader as Reader
from holdfast.observe.tallies import Tallies as Tallies
from holdfast.observe.tallies import Tally as Tally
