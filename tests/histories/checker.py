"""The checker: every promise, as the rule that tells where a history does not keep it.

A rule is a generator of (job id or call, what is wrong). It knows nothing of databases and processes, so that its own
tests can hand it histories in which a promise was broken.
"""

from collections.abc import Callable
from dataclasses import dataclass

from tests.histories import rules_of_calls as calls
from tests.histories import rules_of_jobs as jobs
from tests.histories.history import Found, History


@dataclass(frozen=True)
class Violation:
    rule: str
    subject: str
    detail: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.subject}: {self.detail}"


Rule = Callable[[History], Found]
RULES: dict[str, Rule] = {
    "an acknowledged job is lost": calls.lost,
    "a rolled-back or unknown job appeared": calls.appeared,
    "a commit was not kept": calls.unkept_commits,
    "an idempotency key has two jobs": calls.keys_shared,
    "two jobs with one unique key were alive": calls.unique_alive_twice,
    "an effect is doubled": jobs.effects_doubled,
    "an effect is missing": jobs.effects_missing,
    "an effect has no done job": jobs.effects_unearned,
    "a fence was used twice, or after the end": jobs.fences_repeated,
    "a fence fell": jobs.fences_fallen,
    "a job started too often": jobs.starts_too_many,
    "a job started before it was due": jobs.started_early,
    "a cancelled job ran": jobs.ran_after_cancel,
    "a job died unstarted": jobs.died_unstarted,
    "a dead letter has no error": jobs.died_silently,
    "a job died with attempts left": jobs.died_early,
    "a job was cancelled by nobody": jobs.cancelled_by_nobody,
    "a job is done that nobody started": jobs.done_unstarted,
    "a job is live and finished": jobs.in_both_tables,
    "a job is stuck": jobs.stuck,
    "an act of people is forgotten": jobs.acts_forgotten,
    "an outage was told as a refusal": jobs.refused,
    "a process ended by itself": jobs.ended_by_itself,
}


def check(history: History) -> list[Violation]:
    """Hold every rule against a history."""
    return [Violation(name, *found) for name, rule in RULES.items() for found in rule(history)]
