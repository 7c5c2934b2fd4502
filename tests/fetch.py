"""Fetch the servers and tools of the tests that this machine lacks: `python -m tests.fetch`.

Done before the tests, a download neither runs into a test's time-out nor is met by two test processes at once.
What cannot be had is told and left to the tests, which know whether to skip or to fail.
"""

from tests import brokers, servers
from tests.dashboard import browser
from tests.django import django6
from tests.foreign import engine, php, remote_peers
from tests.outbox import debezium

NAMES = ("postgres", "pgbouncer", "mariadb", "mysql", "mysqlclient", "faketime")
NAMES += (
    *brokers.NAMES,
    debezium.NAME,
    engine.NAME,
    remote_peers.PYPI,
    php.NAME,
    browser.CHROMIUM,
    browser.AXE,
    *django6.VERSIONS,
)


def main() -> None:
    for name in NAMES:
        # The name first: what follows may take minutes.
        print(name, end="", flush=True)
        try:
            servers.need(name)
        except servers.Unavailable as absent:
            print(f" (not to be had here: {absent.why})", end="")
        print(end="\n" if name == NAMES[-1] else ", ", flush=True)


if __name__ == "__main__":
    main()
