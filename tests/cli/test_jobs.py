"""`holdfast jobs`."""

import json
from typing import Any

import pytest

from holdfast import admin, jobs
from holdfast.admin import JobsDesk
from holdfast.cli.follow import Follower
from holdfast.cli.schemas import OurSchema
from holdfast.cli.stores import Opened
from holdfast.flow import Flow, Steps
from holdfast.life.listing import Wanted
from holdfast.store import Store
from holdfast.values.ids import new_id
from tests.cli.conftest import Run, add, claim, kill, lines


@pytest.fixture
def url_of(app: str) -> tuple[str, str]:
    return ("--app", app)


def test_a_list_shows_live_and_finished_jobs(run: Run, app: str, store: Store) -> None:
    [dead] = kill(store)
    [waiting] = add(store)
    shown = run("jobs", "list", "--app", app).stdout.splitlines()
    assert shown[0].split() == ["ID", "STATE", "KIND", "QUEUE", "TRY", "AGE", "LAST", "ERROR"]
    assert shown[1].split()[:5] == [waiting, "pending", "send_receipt", "mail", "0/5"]
    assert shown[2].split()[:5] == [dead, "dead", "send_receipt", "mail", "1/5"]


def test_a_list_says_when_jobs_expire_if_one_of_them_does(run: Run, app: str, store: Store) -> None:
    [never] = add(store)
    ids = [run("enqueue", app, "greet", "name=Ada", "--expires", said).stdout.strip() for said in ("90m", "0.001")]
    shown = run("jobs", "list", "--app", app, "--oldest").stdout.splitlines()
    assert shown[0].split()[-1] == "EXPIRES"
    told = {line.split()[0]: line.split()[7:] for line in shown[1:]}
    assert told[never] == []
    assert told[ids[0]][:3] in (["in", "1", "h"], ["in", "1", "m"])
    assert told[ids[1]][-1] == "ago"
    assert "expires" in run("jobs", "show", ids[0], "--app", app).stdout
    assert "expires" not in run("jobs", "show", never, "--app", app).stdout
    assert [job["expires_at"] is None for job in lines(run("jobs", "list", "--app", app, "--json", "--oldest"))] == [
        True,
        False,
        False,
    ]


def test_an_empty_list_says_so_beside_the_output(run: Run, app: str) -> None:
    shown = run("jobs", "list", "--app", app)
    assert (shown.stdout, shown.stderr) == ("", "no jobs found\n")
    assert run("jobs", "list", "--app", app, "--json").stdout == ""


@pytest.mark.parametrize("way", [(), ("--oldest",)], ids=["newest", "oldest"])
def test_a_list_ends_at_its_horizon_and_says_so(
    run: Run, app: str, store: Store, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]
) -> None:
    monkeypatch.setattr("holdfast.admin.desk.WINDOW", 3)
    # One at each end that fits, with many between.
    ends = [kill(store)[0]]
    kill(store, 9, queue="bulk")
    ends += kill(store)
    near, far = ends if way else reversed(ends)
    asked = ("jobs", "list", "--app", app, "--json", "--state", "dead", "--state", "done", "--queue", "mail", *way)
    short = run(*asked)
    assert [job["id"] for job in lines(short)] == [near]
    assert "for the others: --all, or --after " in short.stderr
    after = short.stderr.split("--after ")[1].split()[0]
    assert [job["id"] for job in lines(run(*asked, "--after", after, "--all"))] == [far]
    whole = run(*asked, "--all")
    assert [job["id"] for job in lines(whole)] == [near, far]
    assert "--all" not in whole.stderr


def test_json_is_one_object_per_line(run: Run, app: str, store: Store) -> None:
    add(store, 3)
    found = lines(run("jobs", "list", "--app", app, "--json"))
    assert [job["payload"] for job in found] == [{"order_id": 1}] * 3


@pytest.mark.parametrize(
    "words, count",
    [
        ("--state pending", 3),
        ("--state dead --state pending", 5),
        ("--state leased", 0),
        ("--queue mail", 2),
        ("--queue other", 3),
        ("--kind greet", 3),
        ("--key order:1", 3),
        ("--error order", 2),
        ("--error absent", 0),
        ("--worker worker-1", 2),
        ("--since 1h", 5),
        ("--until 1h", 0),
        ("--since 2020-01-01 --until 2020-01-02", 0),
        ("--limit 2", 2),
        ("--group 0000000000000000", 0),
    ],
)
def test_filters_narrow_the_list(run: Run, app: str, store: Store, words: str, count: int) -> None:
    kill(store, 2)
    add(store, 3, kind="greet", queue="other", key="order:1")
    assert len(lines(run("jobs", "list", "--app", app, "--json", *words.split()))) == count


def test_pages_follow_each_other(run: Run, app: str, store: Store) -> None:
    ids = add(store, 5)
    first = run("jobs", "list", "--app", app, "--json", "--limit", "3", "--oldest")
    assert [job["id"] for job in lines(first)] == ids[:3]
    assert f"--after {ids[2]}" in first.stderr
    second = lines(run("jobs", "list", "--app", app, "--json", "--limit", "3", "--oldest", "--after", ids[2]))
    assert [job["id"] for job in second] == ids[3:]


@pytest.mark.parametrize(
    "words",
    [
        "--state gone",
        "--since yesterday",
        "--until 12",
        "--limit 0",
        "--limit x",
        "--id 12",
        "--after 12",
        "--queue=",
        f"--key={'k' * 201}",
    ],
)
def test_a_wrong_filter_is_wrong_usage(run: Run, app: str, words: str) -> None:
    run("jobs", "list", "--app", app, *words.split(" "), code=2)


def test_show_tells_the_whole_story(run: Run, app: str, store: Store) -> None:
    [job_id] = kill(store, message="no such order", key="order:1")
    run("jobs", "retry", job_id, "--app", app, "--actor", "ada@desk")
    shown = run("jobs", "show", job_id, "--app", app).stdout
    for part in ("send_receipt", '{"order_id":1}', "order:1", "ValueError: no such order", "replay by ada@desk"):
        assert part in shown
    [told] = lines(run("jobs", "show", job_id.upper(), "--app", app, "--json"))
    assert told["audit"][0]["actor"] == "ada@desk"
    assert told["replays"] == 1


@pytest.mark.parametrize("words", ["jobs show", "jobs retry", "jobs cancel", "dead show"])
@pytest.mark.parametrize(
    "job_id", [pytest.param(new_id(), id="new"), "12", "no-such-thing", "'; drop table holdfast_jobs"]
)
def test_an_unknown_id_is_not_found(run: Run, app: str, words: str, job_id: str) -> None:
    assert "There is no job" in run(*words.split(), job_id, "--app", app, code=5).stderr


def test_retry_brings_back_what_waits_or_died(run: Run, app: str, store: Store) -> None:
    [dead] = kill(store)
    [later] = add(store, delay_ms=3_600_000)
    shown = run("jobs", "retry", dead, later, "--app", app).stdout
    assert f"{dead} is back in its queue" in shown
    assert f"{later} is due now" in shown
    assert {lease.job_id for lease in claim(store, 5)} == {dead, later}


def test_an_action_that_does_not_apply_is_a_conflict(run: Run, app: str, store: Store) -> None:
    add(store)
    [lease] = claim(store)
    assert "is leased and cannot be retried" in run("jobs", "retry", lease.job_id, "--app", app, code=6).stderr
    store.run(jobs.complete(lease))
    assert "is done" in run("jobs", "cancel", lease.job_id, "--app", app, code=6).stderr


def test_of_several_jobs_each_is_tried(run: Run, app: str, store: Store) -> None:
    [waiting] = add(store)
    told = run("jobs", "cancel", "12", waiting, new_id(), "--app", app, code=5)
    assert f"{waiting} is cancelled" in told.stdout
    assert told.stderr.count("There is no job") == 2


def test_cancel_asks_a_running_job_to_stop(run: Run, app: str, store: Store) -> None:
    add(store)
    [lease] = claim(store)
    assert "asked to stop" in run("jobs", "cancel", lease.job_id, "--app", app).stdout
    assert store.run(admin.show(lease.job_id)).cancel_requested


def test_the_actor_is_the_user_by_default(run: Run, app: str, store: Store) -> None:
    [job_id] = add(store)
    run("jobs", "cancel", job_id, "--app", app, env={"USER": "grace"})
    [line] = store.run(admin.audit(job_id))
    assert line.actor is not None
    assert line.actor.startswith("grace@")


def test_an_action_without_an_id_is_wrong_usage(run: Run, app: str) -> None:
    for words in (("show",), ("retry",), ("cancel",)):
        run("jobs", *words, "--app", app, code=2)


def test_tail_shows_each_change_once(run: Run, app: str, store: Store) -> None:
    follower, at = Follower(Wanted(queue="mail")), Opened(JobsDesk(), store, OurSchema(store))
    add(store, 1, queue="other")
    [job_id] = add(store)
    assert [state for _, state in follower.look(at)] == ["pending"]
    assert follower.look(at) == []
    [lease] = claim(store)
    assert [state for _, state in follower.look(at)] == ["leased"]
    store.run(jobs.complete(lease))
    assert [(job.id, state) for job, state in follower.look(at)] == [(job_id, "done")]
    assert follower.look(at) == []


def test_tail_reads_what_ended_since_its_last_look(run: Run, app: str, store: Store) -> None:
    asked: list[str] = []

    class Counting(Opened):
        def run(self, work: Flow[Any]) -> Any:
            def counted() -> Steps[Any]:
                steps = work.start()
                statement = next(steps)
                while True:
                    asked.append(statement.name)
                    try:
                        statement = steps.send((yield statement))
                    except StopIteration as end:
                        return end.value

            return super().run(Flow(work.name, counted))

    follower, at = Follower(Wanted(kind="nobody")), Counting(JobsDesk(), store, OurSchema(store))
    kill(store, 5)
    [other] = add(store, 1, kind="nobody")
    follower.look(at)
    [lease] = claim(store)
    store.run(jobs.complete(lease))
    asked.clear()
    assert [(job.id, state) for job, state in follower.look(at)] == [(other, "done")]
    # The list by id, which would look at all that is kept, is asked for live jobs alone.
    assert asked.count("finished_latest") == 2
    assert asked.count("jobs_list") == 3


def test_tail_begins_with_the_last_ones_and_ends_in_time(run: Run, app: str, store: Store) -> None:
    ids = add(store, 5)
    shown = run("jobs", "tail", "--app", app, "-n", "2", "--for", "0").stdout
    assert [line.split()[2] for line in shown.splitlines()] == ids[3:]
    told = run("jobs", "tail", "--app", app, "--for", "0.03", "--interval", "0.01", "--json").stdout.splitlines()
    assert [json.loads(line)["id"] for line in told] == ids


def test_terminal_codes_in_a_row_are_not_obeyed(run: Run, app: str, store: Store) -> None:
    add(store, kind="\x1b[31mred", queue="mail")
    assert "\x1b" not in run("jobs", "list", "--app", app).stdout
    [job_id] = kill(store, message="\x1b]0;title\x07", kind="bell")
    assert "\x1b" not in run("jobs", "show", job_id, "--app", app).stdout
