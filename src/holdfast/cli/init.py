"""`holdfast init`: a small application that runs."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import click

from holdfast.cli.shared import Exit, Failure

SHOP = '''\
"""A small shop: one job that writes to the database, one that does not."""

import sqlite3

from holdfast import Holdfast, Job, Retry

DATABASE = "shop.db"
hf = Holdfast(f"sqlite:///{DATABASE}")  # README.md says what to change for PostgreSQL

hf.queue("mail", retention=3600)  # keep jobs that are done for an hour


@hf.job(queue="mail", retry=Retry(max_attempts=5), lease=30)
async def send_receipt(job: Job, order_id: int) -> None:
    """Mark the receipt as sent. The mark and the job's completion commit together, or not at all."""
    async with job.transaction() as tx:
        await tx.execute("update orders set receipt_sent = 1 where id = ?", order_id)
    print(f"receipt sent for order {order_id}")


@hf.job
def greet(name: str = "world") -> str:
    """A plain function: it runs on a thread, and what it returns is kept with the job."""
    print(f"hello, {name}")
    return f"greeted {name}"


def place_order(item: str) -> int:
    """Write an order and its job in one transaction: both are there, or neither."""
    connection = sqlite3.connect(DATABASE)
    try:
        with connection:
            connection.execute("begin")
            order_id = connection.execute("insert into orders (item) values (?)", (item,)).lastrowid
            assert order_id is not None
            send_receipt.using(tx=connection, key=f"order:{order_id}").enqueue(order_id=order_id)
        return order_id
    finally:
        connection.close()


def prepare() -> None:
    """Make Holdfast's tables and the shop's own."""
    hf.migrate()
    connection = sqlite3.connect(DATABASE)
    connection.execute(
        "create table if not exists orders"
        " (id integer primary key, item text not null, receipt_sent integer not null default 0)"
    )
    connection.close()


if __name__ == "__main__":
    prepare()
    for item in ("kettle", "cup", "spoon"):
        print(f"order {place_order(item)} placed: {item}")
    greet.enqueue(name="Ada")
    hf.close()
'''

README = """\
# A small Holdfast application

`shop.py` has an order that is written together with its job, a handler that completes together with its effect, and a
plain one. Three commands, in this directory:

    python shop.py                   # make the tables, place three orders, enqueue four jobs
    holdfast worker shop:hf          # run them; stop with Ctrl-C
    holdfast jobs list --app shop:hf # see what became of them

More to try:

    holdfast enqueue shop:hf greet name=Grace
    holdfast enqueue shop:hf send_receipt order_id=1
    holdfast dead list --app shop:hf
    holdfast doctor --app shop:hf

For PostgreSQL, run `pip install 'holdfast-db[postgres]'` (until the first release: `pip install '.[postgres]'` in a
clone of Holdfast), then change four things in `shop.py`:

- the URL: `Holdfast("postgresql://user@host/shop")`;
- in `send_receipt`, the parameter: `where id = $1` instead of `where id = ?` (asyncpg's form; in a `def` handler `tx`
  is a psycopg connection: `tx.execute("... where id = %s", (order_id,))`);
- in `place_order`, the connection: `psycopg.connect("postgresql://user@host/shop")` without the `begin`, and
  `insert into orders (item) values (%s) returning id` with `.fetchone()[0]` instead of `.lastrowid`;
- in `prepare`, the connection too, with a `connection.commit()` before its `close()`, and the table's key:
  `id integer generated always as identity primary key`.

`greet`, the options of the jobs and the calls that enqueue stay as they are.
"""

FILES = {"shop.py": SHOP, "README.md": README}


@click.command(short_help="Write a small application that runs.")
@click.argument("directory", default=".", type=click.Path(file_okay=False, path_type=Path))
def init(directory: Path) -> None:
    """Write a small application that runs, into DIRECTORY (by default the current one).

    Files that are there already are never overwritten.

    \b
    Example:
      holdfast init shop && cd shop && python shop.py && holdfast worker shop:hf
    """
    if taken := [name for name in FILES if (directory / name).exists()]:
        raise Failure(
            f"{directory} has {' and '.join(taken)} already; nothing was written",
            Exit.CONFLICT,
            f"give another directory: `holdfast init {_free_name()}`",
        )
    directory.mkdir(parents=True, exist_ok=True)
    for name, text in FILES.items():
        # "x" refuses a file that appeared since.
        with (directory / name).open("x", encoding="utf-8") as file:
            file.write(text)
        click.echo(f"wrote {directory / name}")
    click.echo("\nNext:")
    if directory != Path("."):
        click.echo(f"  cd {directory}")
    click.echo("  python shop.py\n  holdfast worker shop:hf\n  holdfast jobs list --app shop:hf")


def _free_name() -> str:
    names = (f"shop{number}" if number > 1 else "shop" for number in count(1))
    return next(name for name in names if not Path(name).exists())
