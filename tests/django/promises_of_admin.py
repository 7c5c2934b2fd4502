"""What the read-only models and their admin promise, on every database; run by `test_tasks_and_admin.py`."""

import io
import json
import re
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from django.contrib.auth.models import Permission, User
from django.core.management import call_command
from django.db import NotSupportedError, connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from inner import promise

from holdfast import Fatal, admin
from holdfast.django import hf, lists
from holdfast.django.models import FinishedJob, Job, Worker
from holdfast.testing.inline import run_due
from holdfast.worker import registry

ALL = ("view_job", "view_finishedjob", "retry_job", "cancel_job", "replay_finishedjob", "discard_finishedjob")
HERE = {"sec-fetch-site": "same-origin"}


@hf.job(kind="charge")
def charge(order: int, password: str = "", fail: bool = False) -> dict[str, Any]:
    if fail:
        raise Fatal(f"card refused, token=tok_{order}")
    return {"order": order, "token": "tok_secret"}


def done(order: int, **more: Any) -> str:
    job = charge.using(key=f"order:{order}").enqueue(order=order, **more)
    run_due(hf, raise_errors=False, own_database=True)
    return job.id


def dead(order: int) -> str:
    return done(order, fail=True)


def visitor(*permissions: str, name: str = "ada", **more: Any) -> Client:
    user = User.objects.create_user(name, is_staff=True, **more)
    user.user_permissions.set(Permission.objects.filter(content_type__app_label="holdfast", codename__in=permissions))
    client = Client(enforce_csrf_checks=False, raise_request_exception=True)
    client.force_login(user)
    return client


def page(client: Client, route: str, *args: Any, **query: Any) -> str:
    answer = client.get(reverse(f"admin:holdfast_{route}", args=args), query)
    assert answer.status_code == 200, (answer.status_code, answer.headers)
    return answer.content.decode()


def listed(client: Client, route: str, **query: Any) -> list[str]:
    return re.findall(r'name="_selected_action" value="([^"]+)"', page(client, f"{route}_changelist", **query)) or (
        re.findall(r'field-id"><a href="[^"]*?/([0-9a-f-]{36})/', page(client, f"{route}_changelist", **query))
    )


def act(client: Client, route: str, action: str, ids: list[str], **more: str) -> Any:
    said = {"action": action, "_selected_action": ids, **more}
    return client.post(reverse(f"admin:holdfast_{route}_changelist"), said, follow=True)


def state(job: str) -> str:
    return hf.store.run(admin.show(job)).state


def audited(job: str) -> list[tuple[str, str | None]]:
    return [(line.action, line.actor) for line in hf.store.run(admin.audit(job))]


@contextmanager
def refused():
    said = ""
    try:
        yield
    except NotSupportedError as error:
        said = str(error)
    assert "only read by models" in said, said or "it was not refused"


@promise
def models_read_what_the_rows_say():
    waiting = charge.using(key="order:1", run_after=timedelta(hours=1), priority=7).enqueue(order=1)
    over = dead(2)
    view, row = hf.store.run(admin.show(waiting.id)), Job.objects.get(pk=waiting.id)
    for name in ("id", "state", "queue", "kind", "key", "priority", "attempts", "max_attempts", "fence", "created_at"):
        assert getattr(row, name) == getattr(view, name), name
    assert (row.available_at, row.leased_at, row.payload) == (view.available_at, None, {"order": 1})
    assert row.cancel_requested is False
    view, row = hf.store.run(admin.show(over)), FinishedJob.objects.get(pk=over)
    assert (row.outcome, row.finished_at, row.leased_by) == ("dead", view.finished_at, view.leased_by)
    assert (row.errors, row.fingerprint) == (view.errors, view.group)
    assert FinishedJob.objects.get(pk=done(3)).result == {"order": 3, "token": "tok_secret"}


@promise
def rows_are_found_by_moment_and_id():
    old, new = done(1), done(2)
    at = FinishedJob.objects.get(pk=new).created_at
    assert [row.pk for row in FinishedJob.objects.filter(created_at__gte=at)] == [new]
    assert [row.pk for row in FinishedJob.objects.filter(created_at__lt=at)] == [old]
    assert FinishedJob.objects.filter(pk__in=[old, new], kind="charge", outcome="done").count() == 2
    assert [row.pk for row in FinishedJob.objects.order_by("-finished_at")] == [new, old]


@promise
def models_write_nothing():
    over = FinishedJob.objects.get(pk=done(1))
    rows = FinishedJob.objects.filter(pk=over.pk)
    for write in (
        over.save,
        over.delete,
        rows.delete,
        rows.select_for_update,
        lambda: rows.update(kind="other"),
        lambda: FinishedJob.objects.create(id=over.pk),
        lambda: FinishedJob.objects.get_or_create(id="01997a3e-5b1c-7d20-8f4e-0a1b2c3d4e5f"),
        lambda: FinishedJob.objects.bulk_create([over]),
        lambda: FinishedJob.objects.bulk_update([over], ["kind"]),
        lambda: Worker(id="x").save(),
    ):
        with refused():
            write()
    assert FinishedJob.objects.get().kind == "charge"


@promise
def makemigrations_finds_nothing_to_do():
    call_command("makemigrations", "--check", "--dry-run", verbosity=0)


@promise
def djangos_own_checks_find_nothing():
    call_command("check", fail_level="WARNING", verbosity=0)


@promise
def lists_are_filtered_and_searched():
    client = visitor(*ALL)
    waiting = charge.using(key="order:1", queue="mail", run_after=60).enqueue(order=1).id
    gone, over = dead(2), done(3)
    assert listed(client, "job") == [waiting] == listed(client, "job", queue="mail", state="pending", kind="charge")
    assert listed(client, "job", state="leased") == listed(client, "job", queue="default") == []
    # Somebody may type it: a live job is never dead.
    assert listed(client, "job", state="dead") == []
    assert listed(client, "finishedjob") == [over, gone]
    assert listed(client, "finishedjob", state="dead") == [gone]
    assert listed(client, "finishedjob", q="order:3") == [over]
    assert listed(client, "finishedjob", q=gone) == listed(client, "finishedjob", q=gone.upper()) == [gone]
    assert listed(client, "job", q=waiting[:13]) == [waiting]
    assert listed(client, "finishedjob", q="order:") == listed(client, "job", q="nothing'; --") == []


@promise
def a_worker_that_stopped_is_not_listed_as_dead():
    hf.store.run(registry.beat("w1", "{}"))
    hf.store.run(registry.leave("w1"))
    shown = page(visitor("view_worker"), "worker_changelist")
    assert "stopped" in shown
    assert '<td class="field-state">stopped</td>' in shown, shown


@promise
def no_list_counts_rows_or_looks_at_all_of_them():
    client = visitor(*ALL)
    gone, jobs = dead(0), [done(number) for number in range(5)]
    before = lists.WINDOW, lists.MOST_LISTED
    lists.WINDOW = 3
    try:
        with CaptureQueriesContext(connection) as asked:
            assert listed(client, "finishedjob", kind="charge") == jobs[:1:-1]
            assert listed(client, "finishedjob", q="order:1") == []
            # What an index finds is found whatever its age.
            assert listed(client, "finishedjob", q=jobs[0]) == [jobs[0]]
            assert listed(client, "finishedjob", state="dead") == [gone]
            assert listed(client, "finishedjob", state="dead", kind="charge", q="order:0") == [gone]
        for query in asked:
            said = query["sql"].lower()
            assert not re.search(r"count\(|distinct", said), said
            assert "finished" not in said or "limit" in said or "order by" in said, said
        lists.WINDOW, lists.MOST_LISTED = 10, 2
        assert "Narrow the list down" in page(client, "finishedjob_changelist")
    finally:
        lists.WINDOW, lists.MOST_LISTED = before
    assert "Narrow the list down" not in page(client, "finishedjob_changelist")


@promise
def a_list_of_dead_letters_reads_no_more_beside_many_others():
    client = visitor(*ALL)
    over = [done(number) for number in range(3)]
    letters = [dead(number) for number in range(3)]
    before = lists.WINDOW, lists.MOST_LISTED, lists.NAMES_AMONG
    lists.WINDOW, lists.MOST_LISTED, lists.NAMES_AMONG = 2, 2, 2
    try:
        few = [steps(client, **asked) for asked in LETTERS]
        with connection.cursor() as cursor:
            columns = [field.column for field in FinishedJob._meta.fields if field.column != "id"]
            names = ", ".join(map(connection.ops.quote_name, columns))
            ids = [f"{number:08x}{letters[0][8:]}" for number in range(3_000)]
            cursor.executemany(
                f"insert into holdfast_finished (id, {names})"  # noqa: S608 - our own words
                f" select %s, {names} from holdfast_finished where id = %s",
                [(one, letters[0] if number % 2 else over[0]) for number, one in enumerate(ids)],
            )
        many = [steps(client, **asked) for asked in LETTERS]
        assert listed(client, "finishedjob", state="dead") == letters[:0:-1]
        assert listed(client, "finishedjob", state="dead", queue="default") == letters[:0:-1]
        assert listed(client, "finishedjob", state="dead", kind="nobody") == []
        assert listed(client, "finishedjob", state="dead", kind="k" * 2_000) == []
        # The oldest is behind the horizon.
        assert listed(client, "finishedjob", state="dead", q="order:0") == []
    finally:
        lists.WINDOW, lists.MOST_LISTED, lists.NAMES_AMONG = before
    assert all(after <= 1.2 * ahead + 100 for ahead, after in zip(few, many, strict=True)), (few, many)


LETTERS: list[dict[str, str]] = [{"state": "dead", **more} for more in ({}, {"queue": "default"}, {"kind": "nobody"})]
LETTERS += [{"state": "cancelled"}, {"state": "done", "kind": "nobody"}]


def steps(client: Client, **asked: str) -> int:
    """Count the steps of SQLite's virtual machine for a list, in tens; nothing on other databases."""
    if connection.vendor != "sqlite":
        return 0
    taken = 0

    def step() -> int:
        nonlocal taken
        taken += 1
        return 0

    connection.connection.set_progress_handler(step, 10)
    listed(client, "finishedjob", **asked)
    connection.connection.set_progress_handler(None, 0)
    return taken


@promise
def the_page_of_a_job_tells_its_story_and_hides_secrets():
    client = visitor(*ALL)
    job = done(9182, password="hunter2", fail=True)
    hf.store.run(admin.retry(job, "grace"))
    run_due(hf, raise_errors=False, own_database=True)
    text = page(client, "finishedjob_change", job)
    for part in ("was enqueued", "attempt 1 failed", "card refused", "replay by hand", "grace", "dead letter", "9182"):
        assert part in text, part
    assert "hunter2" not in text
    assert "tok_9182" not in text
    assert "tok_secret" not in page(client, "finishedjob_change", done(1))
    assert "tok_9182" not in page(client, "finishedjob_changelist")


@promise
def what_is_stored_becomes_no_markup():
    client = visitor(*ALL)
    job = charge.using(key="<script>alert(1)</script>", run_after=60).enqueue(order=1, password="").id
    for text in (page(client, "job_changelist"), page(client, "job_change", job)):
        assert "<script>alert(1)" not in text
        assert "&lt;script&gt;alert(1)" in text


@promise
def each_action_needs_its_permission():
    waiting, gone = charge.using(run_after=60).enqueue(order=1).id, dead(2)
    looks = visitor("view_job", "view_finishedjob", name="eve")
    routes = {"retry": ("job", waiting), "cancel": ("job", waiting), "replay": ("finishedjob", gone)}
    routes["discard"] = ("finishedjob", gone)
    for action, (route, job) in routes.items():
        assert f'value="{action}"' not in page(looks, f"{route}_changelist"), action
        act(looks, route, action, [job], yes="1")
        address = reverse(f"admin:holdfast_{route}_act", args=[job, action])
        assert looks.post(address, {"yes": "1"}).status_code == 403
        assert f'action="{address}"' not in page(looks, f"{route}_change", job)
    assert (state(waiting), state(gone)) == ("pending", "dead")
    assert audited(waiting) == audited(gone) == []
    # One permission is not another, and of a job that is elsewhere by now nothing happens.
    cancels = visitor("view_job", "cancel_job", name="carol")
    assert cancels.post(reverse("admin:holdfast_job_act", args=[waiting, "retry"])).status_code == 403
    assert cancels.post(reverse("admin:holdfast_job_act", args=[waiting, "unheard-of"])).status_code == 403
    assert cancels.get(reverse("admin:holdfast_job_act", args=[waiting, "cancel"])).status_code == 405
    assert state(waiting) == "pending"


@promise
def who_may_not_look_sees_nothing():
    job = dead(1)
    for client in (Client(), visitor(name="mallory"), visitor("view_job", name="trent")):
        for route in (["finishedjob_changelist"], ["finishedjob_change", job]):
            answer = client.get(reverse(f"admin:holdfast_{route[0]}", args=route[1:]))
            assert answer.status_code in (302, 403), answer.status_code


@promise
def actions_are_done_and_audited_under_the_users_name():
    client = visitor(*ALL)
    soon, never, back, away = (charge.using(run_after=60).enqueue(order=1).id for _ in range(4))
    act(client, "job", "retry", [soon])
    assert hf.store.run(admin.show(soon)).available_at <= hf.store.run(admin.show(never)).available_at
    asked = act(client, "job", "cancel", [never, back, away])
    assert b"Cancel 3 jobs?" in asked.content
    assert state(never) == "pending"
    answer = act(client, "job", "cancel", [never, back, away], yes="1")
    assert b"3 jobs cancelled" in answer.content
    act(client, "finishedjob", "replay", [back])
    assert b"Discard 1 job?" in act(client, "finishedjob", "discard", [away]).content
    act(client, "finishedjob", "discard", [away], yes="1")
    assert (state(never), state(back)) == ("cancelled", "pending")
    assert not FinishedJob.objects.filter(pk=away).exists()
    assert audited(soon) == [("run_now", "ada")]
    assert audited(back) == [("replay", "ada"), ("cancel", "ada")]
    assert audited(away) == [("discard", "ada"), ("cancel", "ada")]


@promise
def buttons_of_a_job_do_the_same():
    client = visitor(*ALL)
    job = dead(1)
    assert f'action="{reverse("admin:holdfast_finishedjob_act", args=[job, "replay"])}"' in page(
        client, "finishedjob_change", job
    )
    answer = client.post(reverse("admin:holdfast_finishedjob_act", args=[job, "replay"]), follow=True)
    # Its page is among the live jobs now.
    assert answer.redirect_chain[-1][0] == reverse("admin:holdfast_job_change", args=[job])
    assert b"1 job replayed" in answer.content
    assert state(job) == "pending"
    asked = client.post(reverse("admin:holdfast_job_act", args=[job, "cancel"]))
    assert b"Cancel 1 job?" in asked.content
    assert state(job) == "pending"
    client.post(reverse("admin:holdfast_job_act", args=[job, "cancel"]), {"yes": "1"})
    assert state(job) == "cancelled"
    assert audited(job)[0] == ("cancel", "ada")


@promise
def what_cannot_be_done_is_told():
    client = visitor(*ALL)
    over = done(1)
    answer = act(client, "finishedjob", "replay", [over])
    assert b"0 jobs replayed" in answer.content
    assert b"it is not dead or cancelled" in answer.content
    assert state(over) == "done"


@promise
def running_now_does_not_replay_what_is_dead():
    job = dead(1)
    ada = visitor("view_job", "view_finishedjob", "retry_job", name="ada")
    kind = "application/x-www-form-urlencoded"
    ada.post(reverse("admin:holdfast_job_changelist") + f"{job}/act/retry/", follow=True)
    assert ada.post("/ops/do/retry", f"id={job}&yes=1", kind, headers=HERE).status_code == 403
    assert state(job) == "dead"


@promise
def the_dashboard_is_for_staff_with_permissions():
    job = dead(1)
    nobody, eve = Client(), visitor(name="eve")
    ada = visitor("view_job", "replay_finishedjob", name="ada")
    assert nobody.get("/ops/jobs").status_code == 302
    assert eve.get("/ops/jobs").status_code == 403
    text = ada.get("/ops/jobs").content.decode()
    assert "charge" in text
    assert 'href="/ops/queues"' in text
    assert "<code>manage.py holdfast worker</code>" in ada.get("/ops/").content.decode()
    kind = "application/x-www-form-urlencoded"
    assert ada.post("/ops/do/pause", "queue=mail", kind, headers=HERE).status_code == 403
    answer = ada.post("/ops/do/replay", f"id={job}&yes=1", kind, headers=HERE)
    assert answer.status_code == 200, json.dumps(answer.content.decode()[-500:])


@promise
def a_dump_of_the_project_leaves_jobs_out_unless_they_are_asked_for():
    def dumped(*apps: str) -> list[str]:
        written = io.StringIO()
        call_command("dumpdata", *apps, stdout=written)
        return [row["model"] for row in json.loads(written.getvalue())]

    charge.enqueue(order=1)
    User.objects.create_user("ada")
    assert {"auth.user", "auth.permission"} <= set(dumped())
    assert not [model for model in dumped() if model.startswith("holdfast.")]
    assert dumped("auth.user") == ["auth.user"]
    assert dumped("holdfast.job") == dumped("holdfast.job", "auth.group") == ["holdfast.job"]
