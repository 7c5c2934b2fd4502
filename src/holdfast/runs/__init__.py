"""Durable runs as rows: their journals, what is sent to them, and what follows when one parks or ends.

A run is a job: it is enqueued, claimed, leased, reaped and settled as any other, and a bit in its row says that it is
one. What it has done stands in its journal (`holdfast_steps`), in the order in which its body was told; a worker that
takes it over tells its body the same again. What is sent to it waits in its inbox (`holdfast_signals`).

Flows and plain rules only. The function that a run calls, and the loop that it runs on, belong to `workflows`; what
makes its steps and writes its journal to `worker`.
"""

from holdfast.runs.checkpoints import EffectThere as EffectThere
from holdfast.runs.checkpoints import Entry as Entry
from holdfast.runs.checkpoints import Head as Head
from holdfast.runs.checkpoints import add_one as add_one
from holdfast.runs.checkpoints import checkpoint as checkpoint
from holdfast.runs.checkpoints import decide as decide
from holdfast.runs.checkpoints import head as head
from holdfast.runs.checkpoints import journal as journal
from holdfast.runs.checkpoints import stick as stick
from holdfast.runs.drawing import drawn as drawn
from holdfast.runs.inbox import TAKEN_AT_ONCE as TAKEN_AT_ONCE
from holdfast.runs.inbox import Letter as Letter
from holdfast.runs.inbox import asked_to_stop as asked_to_stop
from holdfast.runs.inbox import find as find
from holdfast.runs.inbox import hear as hear
from holdfast.runs.inbox import news as news
from holdfast.runs.inbox import send as send
from holdfast.runs.inbox import take as take
from holdfast.runs.inbox import tell as tell
from holdfast.runs.inbox import wake_for as wake_for
from holdfast.runs.leaving import ChildEnd as ChildEnd
from holdfast.runs.leaving import tell_again as tell_again
from holdfast.runs.noting import Noted as Noted
from holdfast.runs.noting import There as There
from holdfast.runs.noting import family_of as family_of
from holdfast.runs.noting import give_keys_away as give_keys_away
from holdfast.runs.noting import make_children as make_children
from holdfast.runs.noting import named as named
from holdfast.runs.noting import note as note
from holdfast.runs.noting import those_with as those_with
from holdfast.runs.noting import unbegun as unbegun
from holdfast.runs.people import LIVE as LIVE
from holdfast.runs.people import STATUSES as STATUSES
from holdfast.runs.people import RunFilter as RunFilter
from holdfast.runs.people import live_kinds as live_kinds
from holdfast.runs.people import long_journals as long_journals
from holdfast.runs.people import look as look
from holdfast.runs.people import runs as runs
from holdfast.runs.people import show as show
from holdfast.runs.people import timeline as timeline
from holdfast.runs.returning import copy_before as copy_before
from holdfast.runs.returning import go_on as go_on
from holdfast.runs.returning import go_on_as as go_on_as
from holdfast.runs.rows import CANCEL as CANCEL
from holdfast.runs.rows import CHILD as CHILD
from holdfast.runs.rows import REMOTE as REMOTE
from holdfast.runs.rows import RUN as RUN
from holdfast.runs.rows import RUN_HEADER as RUN_HEADER
from holdfast.runs.rows import STUCK as STUCK
from holdfast.runs.rows import Awaits as Awaits
from holdfast.runs.rows import Kind as Kind
from holdfast.runs.rows import Recorded as Recorded
from holdfast.runs.rows import RunView as RunView
from holdfast.runs.rows import Wanted as Wanted
from holdfast.runs.upkeep import prune as prune
