"""Rounds: what a worker does again and again beside its jobs, one file each, run side by side.

To add a round, write a `Round` in a file of its own and name it in `ROUNDS`. It takes a `RoundContext` and never the
worker. The flows that it runs belong to the surfaces; jitter and the report of failures to `base`.
"""

from holdfast.worker.rounds.base import Round, RoundContext
from holdfast.worker.rounds.beat import Beat
from holdfast.worker.rounds.clocks import Clocks
from holdfast.worker.rounds.company import Company
from holdfast.worker.rounds.give_back import GiveBack
from holdfast.worker.rounds.letters import Letters
from holdfast.worker.rounds.lines import Lines
from holdfast.worker.rounds.merge import Merge
from holdfast.worker.rounds.messages import RemoteMessages
from holdfast.worker.rounds.prune import Prune
from holdfast.worker.rounds.pulse import Pulse
from holdfast.worker.rounds.reap import Reap
from holdfast.worker.rounds.remote import RemoteResults
from holdfast.worker.rounds.renew import Renew
from holdfast.worker.rounds.ring import RingRound
from holdfast.worker.rounds.sample import Sampling
from holdfast.worker.rounds.schedules import Schedules
from holdfast.worker.rounds.settings import Settings
from holdfast.worker.rounds.shards import ShardMaps
from holdfast.worker.rounds.stuck import Stuck

ROUNDS: tuple[type[Round], ...] = (
    Renew,
    Reap,
    Beat,
    Prune,
    Stuck,
    Schedules,
    GiveBack,
    Pulse,
    RingRound,
    Settings,
    Lines,
    Letters,
    Sampling,
    Merge,
    RemoteResults,
    RemoteMessages,
    ShardMaps,
    Clocks,
    Company,
)


def rounds_on(context: RoundContext) -> list[Round]:
    """Make the rounds of one store."""
    return [kind(context) for kind in ROUNDS if kind.runs_on(context)]
