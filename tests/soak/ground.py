"""Two shards, each a PostgreSQL server behind proxies; the first has a synchronous standby that can take over."""

from contextlib import ExitStack
from typing import Any, Self

import psycopg

from holdfast.store import growing
from holdfast.values.ids import bucket
from tests.failover.pair import Pair
from tests.proxy import Proxy
from tests.servers import HOST, Postgres
from tests.soak.app import KEYS, TABLE, application

NAME = "soak"
SHARDS = 2
# Buckets that move beside those of the keys in use.
MORE_BUCKETS = 100
LEFT = """
select format('%s %s (%s), %s after %s attempts, due %s, last error %s',
              kind, payload ->> 'tag', id, state, attempts, available_at, errors -> -1)
  from holdfast_jobs
"""


class Ground:
    """The servers, the ways to them, and who is the primary of the first shard."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self._failed_over = False
        self._moved: list[int] = []

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            self.pair = stack.enter_context(Pair(synchronous=True))
            self.other = stack.enter_context(Postgres())
            for server in (self.pair.primary, self.other):
                server.create_database(NAME)
            servers: tuple[tuple[Postgres, ...], ...] = ((self.pair.primary, self.pair.standby), (self.other,))
            self.proxies = [[stack.enter_context(Proxy(one.port)) for one in shard] for shard in servers]
            self.urls = [_url([proxy.port for proxy in shard]) for shard in self.proxies]
            # People who change the shards come by another way than the one that is cut.
            self.hf = application([_url([one.port for one in shard]) for shard in servers])
            stack.callback(self.hf.close)
            self.hf.migrate()
            for shard in range(SHARDS):
                self.query(shard, TABLE)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def server(self, shard: int) -> Postgres:
        """Give the server that takes the writes of a shard."""
        if shard:
            return self.other
        return self.pair.standby if self._failed_over else self.pair.primary

    def way(self, shard: int) -> Proxy:
        """Give the proxy that leads to the server that takes the writes of a shard."""
        return self.proxies[shard][-1 if self._failed_over else 0]

    def query(self, shard: int, statement: str, *arguments: Any) -> list[tuple[Any, ...]]:
        with psycopg.connect(self.server(shard).url(NAME), autocommit=True, connect_timeout=5) as connection:
            answer = connection.execute(statement, arguments or None)  # type: ignore[arg-type]
            return answer.fetchall() if answer.description else []

    def backlog(self) -> int:
        return sum(int(self.query(shard, "select count(*) from holdfast_jobs")[0][0]) for shard in range(SHARDS))

    def left(self) -> list[str]:
        """Describe the jobs that have not ended."""
        return [f"{job} of shard {shard}" for shard in range(SHARDS) for (job,) in self.query(shard, LEFT)]

    def heal(self) -> None:
        for proxy in (proxy for shard in self.proxies for proxy in shard):
            proxy.heal()

    def fail_over(self) -> None:
        """Kill the first shard's primary, with all its processes at once, and promote the standby."""
        self.pair.primary.kill()
        self.pair.standby.promote()
        self._failed_over = True

    def move(self) -> str:
        """Move half of the first shard's keys that are in use to the second one; or those that went there, back.

        Raises: Conflict while the last ones are on their way.
        """
        shards = self.hf.shards
        assert shards is not None
        shards.go(shards.map())
        if self._moved:
            known = shards.go(growing.move(shards, self._moved, 0))
            said, self._moved = f"{len(self._moved)} buckets back to shard 0", []
        else:
            used = {bucket(key) for n in range(KEYS) if self.hf.shard_of(key := f"line:{n}") == 0}
            home = [n for n, owner in enumerate(shards.go(shards.map()).owners) if owner == 0]
            chosen = [*sorted(used)[: (len(used) + 1) // 2], *[n for n in home if n not in used][:MORE_BUCKETS]]
            known = shards.go(growing.move(shards, chosen, 1))
            said, self._moved = f"{len(chosen)} buckets to shard 1", chosen
        return f"{said}, map {known.version}"


def _url(ports: list[int]) -> str:
    return f"postgresql://postgres@{','.join(f'{HOST}:{port}' for port in ports)}/{NAME}"
