"""A Galera cluster of MariaDB servers on loopback, whose nodes are killed and come back.

The servers are those of `tests.servers`; what is added is the replication between them.
"""

import os
import signal
import time
from typing import Self

from tests import servers
from tests.servers import HOST, START_SECONDS, MariaDB, free_port

# A dead node is given up within about two seconds instead of five, so that a test need not wait longer than that.
FAILURE_DETECTION = {
    "evs.keepalive_period": "PT0.3S",
    "evs.suspect_timeout": "PT1.5S",
    "evs.inactive_timeout": "PT4S",
    "evs.install_timeout": "PT2S",
}


class Node(MariaDB):
    """One server of a cluster; it keeps its ports over restarts, so that the others find it again."""

    def __init__(self, number: int, cluster: "Cluster") -> None:
        super().__init__(settings={"innodb-buffer-pool-size": "32M"})
        self.number = number
        self.cluster = cluster
        self.group_port, self.ist_port, self.sst_port = free_port(), free_port(), free_port()
        # Only the first node, and only at its first start, makes a cluster; everybody else joins one.
        self.founds = number == 1

    def kill(self) -> None:
        """End the server as a power cut does: its clients and the other nodes hear nothing but closed connections."""
        self.stop(signal.SIGKILL)

    def freeze(self) -> None:
        self._signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(number)

    def committing(self) -> int:
        """Count the sessions that wait for the other nodes to take their commit."""
        states = self.execute("select state from information_schema.processlist")
        return sum("certif" in str(state).lower() for (state,) in states)

    @property
    def conflicts(self) -> int:
        """Transactions of this node, since it started, that lost to one of another node."""
        return int(self.status("local_cert_failures")) + int(self.status("local_bf_aborts"))

    def status(self, name: str) -> str:
        [[_, value]] = self.execute(f"show global status like 'wsrep_{name}'")
        return str(value)

    def start(self) -> Self:
        super().start()
        self.founds = False
        return self

    def discard(self) -> None:
        # A node that leaves in order waits for the others; nobody needs the data any more.
        self.stop(signal.SIGKILL)
        super().discard()

    def _command(self) -> list[str]:
        provider = {
            "gmcast.listen_addr": f"tcp://{HOST}:{self.group_port}",
            "ist.recv_addr": f"{HOST}:{self.ist_port}",
            "gcache.size": "32M",
            # This many commits may be on their way before another node has answered one of them.
            "evs.send_window": "64",
            "evs.user_send_window": "32",
            **FAILURE_DETECTION,
        }
        settings = {
            "wsrep-on": "ON",
            "wsrep-provider": self.cluster.library,
            "wsrep-provider-options": "; ".join(f"{name}={value}" for name, value in provider.items()),
            "wsrep-cluster-name": "holdfast",
            "wsrep-cluster-address": "gcomm://" + ",".join(f"{HOST}:{n.group_port}" for n in self.cluster.nodes),
            "wsrep-node-name": f"node{self.number}",
            "wsrep-node-address": f"{HOST}:{self.group_port}",
            "wsrep-sst-method": "rsync",
            "wsrep-sst-receive-address": f"{HOST}:{self.sst_port}",
            "binlog-format": "ROW",
            "innodb-autoinc-lock-mode": "2",
            # What a node forgets in a crash the others remember; this is how clusters are mostly run.
            "innodb-flush-log-at-trx-commit": "2",
        }
        founding = ["--wsrep-new-cluster"] if self.founds else []
        return [*super()._command(), *(f"--{name}={value}" for name, value in settings.items()), *founding]

    def _ready(self) -> bool:
        try:
            return self.status("ready") == "ON" and self.status("local_state_comment") == "Synced"
        except Exception:
            return False


class Cluster:
    """Three nodes; the first one founds it, the others copy its data (rsync) and join."""

    def __init__(self, size: int = 3) -> None:
        self.library = servers.need("galera")
        self.nodes: list[Node] = []
        self.nodes += [Node(number, self) for number in range(1, size + 1)]
        self._databases = 0

    def __enter__(self) -> Self:
        try:
            for node in self.nodes:
                node.start()
        except BaseException:
            self.discard()
            raise
        self.await_size(len(self.nodes))
        return self

    def __exit__(self, *_: object) -> None:
        self.discard()

    def discard(self) -> None:
        for node in self.nodes:
            node.discard()

    @property
    def running(self) -> list[Node]:
        return [node for node in self.nodes if node.running]

    def fresh_database(self) -> list[str]:
        """Create a database on every node and return its URL on each, in the nodes' order."""
        self._databases += 1
        name = f"test_{os.getpid()}_{self._databases}"
        self.nodes[0].start().create_database(name)
        return [node.url(name) for node in self.nodes]

    def whole(self) -> Self:
        """Start again what was killed, and wait until all nodes are one cluster."""
        for node in self.nodes:
            node.start()
        self.await_size(len(self.nodes))
        return self

    def caught_up(self) -> None:
        """Wait until every node has applied what any of them committed before: a read may lag behind otherwise."""
        for node in self.running:
            node.execute("set statement wsrep_sync_wait = 1 for select 1 from mysql.global_priv limit 1")

    def await_size(self, size: int) -> None:
        """Wait until every running node counts that many members, itself among them."""
        deadline = time.monotonic() + START_SECONDS
        while any(node.status("cluster_size") != str(size) or not node._ready() for node in self.running):
            if time.monotonic() > deadline:
                sizes = {node.number: node.status("cluster_size") for node in self.running}
                raise TimeoutError(f"the cluster did not come to {size} nodes; they count {sizes}")
            time.sleep(0.05)
