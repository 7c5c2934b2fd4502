"""`holdfast enqueue`: one job by hand, checked like a call of its handler."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.app_argument import AppArgument, AppCommand, app_named
from holdfast.cli.names import declared_queues, unknown
from holdfast.cli.parse import DURATION, payload_of, texts_of
from holdfast.cli.render import print_json, print_notes
from holdfast.cli.shared import connection_options, in_options, json_option, load_app, require_tables
from holdfast.cli.waiting import FOR_EVER, waited
from holdfast.errors import InvalidPayload
from holdfast.values.rows import Enqueued

if TYPE_CHECKING:
    from holdfast.app import Holdfast
    from holdfast.handlers import Bound


@click.command(cls=AppCommand)
@click.argument("app_name", cls=AppArgument, metavar="[APP]", required=False)
@click.argument("kind")
@click.argument("payload", metavar="[JSON | - | NAME=VALUE...]", nargs=-1)
@click.option("--queue", help="Another queue than the handler's.")
@click.option("--priority", type=int, help="-100 to 100; higher runs first.  [default: the handler's, or 0]")
@click.option("--delay", type=DURATION, help="Run no earlier than this from now: 30, 5m, 1h30m.")
@click.option("--expires", type=DURATION, help="Do not begin it later than this from now; it is cancelled instead.")
@click.option("--key", help="The ordering key, such as order:9182.")
@click.option("--idempotency-key", help="Add the job once per key for a day, however often this is run.")
@click.option("--unique", help="Add the job only when no live one of this kind has this unique key.")
@click.option(
    "--max-attempts", type=int, help="Attempts before it becomes a dead letter.  [default: the handler's, or 5]"
)
@click.option("--no-check", is_flag=True, help="Allow a kind that only another program handles.")
@click.option(
    "--wait",
    type=DURATION,
    is_flag=False,
    flag_value=FOR_EVER,
    metavar="[DURATION]",
    help="Wait for its result and print that; no longer than this, if said (--wait 30s).",
)
@connection_options
@json_option
def enqueue(
    app_name: str | None,
    kind: str,
    payload: tuple[str, ...],
    delay: timedelta | None,
    no_check: bool,
    wait: timedelta | None,
    as_json: bool,
    **said: Any,
) -> None:
    """Add one job and print its id; with --wait, its result as JSON.

    The arguments are checked against the handler: as one JSON object, `-` for JSON on stdin, or NAME=VALUE pairs, whose
    values are read as JSON where they are JSON (5, true, null, [1]) and as text otherwise.

    \b
    Example:
      holdfast enqueue shop:hf send_receipt order_id=9182
      holdfast enqueue shop:hf send_receipt '{"order_id": 9182}' --delay 5m --key order:9182
      echo '{"order_id": 9182}' | holdfast enqueue shop:hf send_receipt -
      holdfast enqueue add_up order_id=9182 --wait 30s --app shop:hf
    """
    arguments = payload_of(payload)
    with load_app(app_named("enqueue", app_name)) as holdfast, in_options():
        bound = bind_words(holdfast, kind, arguments, texts_of(payload), check=not no_check, run_after=delay, **said)
        require_tables(holdfast.store)
        queue = said["queue"]
        notes = unknown(holdfast.store, [("queue", queue)], declared_queues(holdfast)) if queue else []
        added = holdfast.enqueue_bound(bound)
        print_notes(notes)
        if not as_json:
            _tell(added, err=wait is not None)
        result = {} if wait is None else {"result": waited(holdfast, added.id, wait)}
    if as_json:
        print_json([{"id": added.id, "created": added.created} | result])
    elif result:
        print_json(result.values())


def _tell(added: Enqueued, *, err: bool) -> None:
    click.echo(added.id, err=err)
    if not added.created:
        click.echo("nothing added: this job was there already", err=True)


def bind_words(holdfast: Holdfast, kind: str, arguments: dict[str, Any], texts: dict[str, str], **said: Any) -> Bound:
    """Check the arguments; a pair that was read as JSON (zip=10115) is text after all where the handler wants text."""
    try:
        return holdfast.bind(kind, arguments, **said)
    except InvalidPayload as error:
        name = error.argument
        if name not in texts or isinstance(arguments[name], str):
            raise
        rest = {other: text for other, text in texts.items() if other != name}
        try:
            return bind_words(holdfast, kind, arguments | {name: texts[name]}, rest, **said)
        except InvalidPayload as other:
            # Where text does not fit either, the first refusal speaks of what was meant.
            raise (error if other.argument == name else other) from None
