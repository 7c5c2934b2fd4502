"""The people's half of a set of tables, as `Source` is the worker's: look at rows, act on them, look for trouble.

The command line, and whatever else shows rows to people, takes a desk and asks it what it can do; nothing there knows
which tables they are. Our own jobs have a desk, and so has each kind of foreign tables.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Collection, Mapping
from datetime import timedelta
from typing import ClassVar, Literal, NoReturn, get_args

from holdfast.errors import NotSupported
from holdfast.flow import Flow, Series
from holdfast.life.findings import Finding
from holdfast.life.listing import EVERYTHING, After, Cancelled, Changed, Count, Family, Kept, Page, Replays, Wanted
from holdfast.values.changes import Change
from holdfast.values.views import AuditLine, DeadGroup, JobView

# retry: run a row as soon as possible. cancel: end a row that has not begun, or ask the worker of a running one to
# stop. change: priority, time or queue of a row that nobody holds. letters: keep dead letters and list them. replay,
# discard: act on those. prune: delete finished rows by age.
Capability = Literal["retry", "cancel", "change", "letters", "replay", "discard", "prune"]
CAPABILITIES: frozenset[Capability] = frozenset(get_args(Capability))


class Desk(ABC):
    """One set of tables as people see it. Methods return flows: looking takes no lock, acting commits by itself.

    A kind of tables writes the abstract methods and those of its capabilities. For each other capability `refusals`
    says why not and what to do instead, and a caller that asks for it gets NotSupported with these words.
    """

    # What the tables are called, on the command line too.
    name: str
    # The states that `rows` can be asked for.
    states: ClassVar[tuple[str, ...]]
    # Why these tables do not do some things: a sentence each that ends with what to do instead.
    refusals: Mapping[Capability, str] = {}
    # What `examine` can be asked for one by one, in their order; none where it looks at everything at once.
    checks: ClassVar[tuple[str, ...]] = ()
    # Whether the application's queues say how long finished rows are kept.
    has_retention: ClassVar[bool] = False

    @property
    def capabilities(self) -> frozenset[Capability]:
        return CAPABILITIES - self.refusals.keys()

    def can(self, what: Capability) -> bool:
        return what not in self.refusals

    def require(self, what: Capability) -> None:
        """Raise NotSupported unless these tables can do it."""
        if what in self.refusals:
            self._refuse(what)

    def _refuse(self, what: Capability) -> NoReturn:
        raise NotSupported(self.name, what, self.refusals[what])

    # Looking

    @abstractmethod
    def counts(self) -> Flow[list[Count]]:
        """Count rows by queue."""

    @abstractmethod
    def rows(
        self, wanted: Wanted = EVERYTHING, *, limit: int = 50, after: After = None, newest: bool = True
    ) -> Flow[Page]:
        """Read rows in the states that the desk knows, by age. Raises: ConfigError for what they cannot be asked."""

    def latest(self, wanted: Wanted = EVERYTHING, limit: int = 50) -> Flow[list[JobView]] | None:
        """Read the rows that ended last, the latest first; None where the tables keep none that has ended."""
        return None

    @abstractmethod
    def show(self, row_id: str, *, dead: bool = False) -> Flow[JobView]:
        """Read one row; `dead` says that it is among the dead letters, which may have ids of their own.

        Raises: JobNotFound.
        """

    def ids_like(self, said: str) -> Flow[list[str]] | None:
        """List ids that begin with what was typed, two at most; None where that is not the beginning of an id."""
        return None

    @abstractmethod
    def examine(
        self,
        lag_seconds: float = 60.0,
        *,
        served: Collection[str] | None = None,
        only: str | None = None,
    ) -> Flow[list[Finding]]:
        """Look for what is wrong with the rows; a row may be due for this long before it is a finding.

        served: the queues of live workers, where they are known and the tables' queues go by those names; as a mapping
        with the kinds that they handle there.
        only: one of `checks`; None makes all of them.
        """

    @abstractmethod
    def is_audited(self) -> Flow[bool]:
        """Tell whether actions by hand are recorded."""

    @abstractmethod
    def audit(self, row_id: str, *, dead: bool = False, limit: int = 50) -> Flow[list[AuditLine]]:
        """Read what was done to a row by hand, the latest first."""

    def family(self, row: JobView) -> Flow[Family] | None:
        """Read what a row comes after, and what comes after it; None where rows of these tables stand by themselves."""
        return None

    def letters(
        self, wanted: Wanted = EVERYTHING, *, limit: int = 50, after: After = None, newest: bool = True
    ) -> Flow[Page]:
        """Read dead letters, as `rows`."""
        self._refuse("letters")

    def count_letters(self, wanted: Wanted = EVERYTHING) -> Flow[int]:
        """Count the dead letters that a list without limit would hold.

        Where `has_retention`, no further than to one more than `observe.COUNTED`.
        """
        self._refuse("letters")

    def groups(self, wanted: Wanted = EVERYTHING, limit: int = 50) -> Flow[list[DeadGroup]]:
        """Group dead letters by kind and likeness of their last error, the largest group first."""
        self._refuse("letters")

    # Acting

    def retry(self, row_id: str, actor: str | None) -> Flow[Literal["due", "replayed"]]:
        """Run a row as soon as possible. Raises: JobNotFound, Conflict."""
        self._refuse("retry")

    def cancel(self, row_id: str, actor: str | None) -> Flow[Literal["cancelled", "requested"]]:
        """End a row that has not begun, or ask the worker of a running one to stop. Raises: JobNotFound, Conflict."""
        self._refuse("cancel")

    def cancel_all(
        self, wanted: Wanted, actor: str | None, limit: int | None = None, dry_run: bool = False
    ) -> Series[Cancelled]:
        """Cancel the rows that are wanted, in chunks; with `dry_run` only tell which."""
        self._refuse("cancel")

    def change_all(
        self, wanted: Wanted, change: Change, actor: str | None, limit: int | None = None, dry_run: bool = False
    ) -> Series[Changed]:
        """Change the rows that are wanted and that nobody holds, in chunks; with `dry_run` only tell which."""
        self._refuse("change")

    def replay(self, wanted: Wanted, limit: int, actor: str | None, dry_run: bool = False) -> Flow[Replays]:
        """Send up to `limit` dead letters back to their queue, the oldest first; with `dry_run` only tell which."""
        self._refuse("replay")

    def discard(self, wanted: Wanted, limit: int, actor: str | None, dry_run: bool = False) -> Flow[list[str]]:
        """Delete up to `limit` dead letters, the oldest first; with `dry_run` only tell which."""
        self._refuse("discard")

    # Pruning

    def kept(self) -> Flow[list[Kept]]:
        """List the parts of what is kept of finished rows."""
        self._refuse("prune")

    def count_older(self, part: Kept, older: timedelta) -> Flow[int]:
        """Count the rows of a part that `prune` would delete."""
        self._refuse("prune")

    def prune(self, part: Kept, older: timedelta, *, limit: int = 1000) -> Flow[int]:
        """Delete a chunk of the rows of a part that finished longer ago; fewer than `limit` means no more are left."""
        self._refuse("prune")

    def prune_keys(self, *, limit: int = 1000) -> Flow[int] | None:
        """Delete a chunk of the idempotency keys past their window; None where there are no such keys."""
        return None

    def count_audit(self, older: timedelta) -> Flow[int] | None:
        """Count the audit lines that `prune_audit` would delete; None where the tables have no audit of their own."""
        return None

    def prune_audit(self, older: timedelta, *, limit: int = 1000) -> Flow[int] | None:
        """Delete a chunk of the audit lines older than this; None where the tables have no audit of their own."""
        return None
