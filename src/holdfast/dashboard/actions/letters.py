"""Replay and discard dead letters: one, those that were chosen, a group, or all that a search finds.

A form does a part and says how far it is; the page sends the next one. So each part is short, nothing is kept in a
process, and what a crash interrupts goes on where the page is loaded again.
"""

from __future__ import annotations

from holdfast.dashboard.actions.base import Outcome, Pairs, Preview
from holdfast.dashboard.actions.which import SAMPLE, again, as_of, chosen, until
from holdfast.dashboard.search import said
from holdfast.dashboard.setting import Place
from holdfast.dashboard.talk import Talk, act_all, look
from holdfast.dashboard.visit import Visit
from holdfast.life.letters import discard_all, replay_all
from holdfast.life.listing import Wanted
from holdfast.observe import COUNTED
from holdfast.values.words import plural

# What one form does: about a second's work on the slowest of the databases.
PART = 2_000


def preview_replay(visit: Visit) -> Talk[Preview]:
    return _preview(visit, "replay")


def preview_discard(visit: Visit) -> Talk[Preview]:
    return _preview(visit, "discard")


def _preview(visit: Visit, verb: str) -> Talk[Preview]:
    place, wanted = chosen(visit)
    place.desk.require("replay" if verb == "replay" else "discard")
    moment = yield from as_of(visit, place)
    wanted = until(wanted, "finished_before", moment)
    if verb == "discard":
        # Refuses what it cannot delete, such as jobs that are done, before they are counted as letters.
        yield from look(place.store, place.desk.discard(wanted, 1, visit.actor, True))
    total = yield from look(place.store, place.desk.count_letters(wanted))
    if not total:
        return Preview("No dead letter fits", words="They may have been replayed or discarded meanwhile.")
    shown = yield from look(place.store, place.desk.letters(wanted, limit=SAMPLE, newest=False))
    notes = []
    if verb == "replay":
        foreseen = yield from look(place.store, place.desk.replay(wanted, min(total, SAMPLE), visit.actor, True))
        notes = list(foreseen.reasons.values())
    cut = _is_cut(place, total)
    count = plural(COUNTED, "dead letter") + " or more" if cut else plural(total, "dead letter")
    words = {
        "replay": "They go back to their queue, due now, with no attempts counted; their errors are kept.",
        "discard": "They are deleted for good. The audit keeps kind, queue and last error of each.",
    }
    fields: Pairs = [*again(visit), ("as_of", moment), ("total", str(total))]
    return Preview(
        f"{verb.capitalize()} {count}?",
        f"{verb.capitalize()} {count}",
        words[verb],
        rows=shown.rows,
        total=COUNTED if cut else total,
        at_least=cut,
        notes=notes,
        fields=fields,
        danger=verb == "discard",
    )


def replay(visit: Visit) -> Talk[Outcome]:
    place, wanted = _meant(visit)
    place.desk.require("replay")
    total, done, stay = (visit.said.number(name) for name in ("total", "done", "stay"))
    cut = _is_cut(place, total)
    part = PART if cut else min(PART, total - done - stay)
    answer = yield from act_all(place.store, replay_all(place.desk, wanted, part, visit.actor, stay=stay))
    done, stays = done + len(answer.ids), max(stay, len(answer.conflicts))
    moved = bool(answer.ids) or stays > stay
    more = moved and (cut or done + stays < total)
    fields = [*again(visit), ("as_of", visit.said.one("as_of")), ("total", str(total))]
    return Outcome(
        f"{plural(done, 'dead letter')} replayed",
        list(answer.reasons.values())[:20],
        _links(visit, place, wanted),
        [*fields, ("done", str(done)), ("stay", str(stays))] if more else None,
        done + stays,
        None if cut else total,
    )


def discard(visit: Visit) -> Talk[Outcome]:
    place, wanted = _meant(visit)
    place.desk.require("discard")
    total, done = visit.said.number("total"), visit.said.number("done")
    cut = _is_cut(place, total)
    part = PART if cut else min(PART, total - done)
    gone = yield from act_all(place.store, discard_all(place.desk, wanted, part, visit.actor))
    done += len(gone)
    fields = [*again(visit), ("as_of", visit.said.one("as_of")), ("total", str(total)), ("done", str(done))]
    more = bool(gone) and (cut or done < total)
    said_so = f"{plural(done, 'dead letter')} discarded"
    links = [_back_to_letters(visit, place)]
    return Outcome(said_so, [], links, fields if more else None, done, None if cut else total)


def _is_cut(place: Place, total: int) -> bool:
    """Tell whether there may be more: our own are counted no further than to a limit, and their time says which."""
    return not place.name and total > COUNTED


def _meant(visit: Visit) -> tuple[Place, Wanted]:
    place, wanted = chosen(visit)
    return place, until(wanted, "finished_before", visit.said.one("as_of"))


def _links(visit: Visit, place: Place, wanted: Wanted) -> Pairs:
    links: Pairs = []
    if len(wanted.ids) == 1 and not place.name:
        links.append(("The job", visit.link("job", id=wanted.ids[0])))
    elif not place.name:
        search = said(queue=wanted.queue, kind=wanted.kind, id=",".join(wanted.ids) or None)
        links.append(("Watch them run", visit.link("jobs", q=search)))
    return [*links, _back_to_letters(visit, place)]


def _back_to_letters(visit: Visit, place: Place) -> tuple[str, str]:
    return "Dead letters", visit.link("dead", store=place.name)
