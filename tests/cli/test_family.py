"""`holdfast jobs show`: what a job comes after, and what comes after it."""

from holdfast import jobs
from holdfast.store import Store
from holdfast.testing import new_job
from holdfast.testing.suite_chains import MARK, child_of
from holdfast.values.ids import next_id
from holdfast.values.rows import CONTINUES_HEADER, Continued, Finish
from tests.cli.conftest import Run, lines


def test_show_draws_what_comes_before_and_after(run: Run, app: str, store: Store) -> None:
    parent = store.run(jobs.enqueue(new_job(kind="resize"))).id
    child = store.run(jobs.enqueue(child_of(parent))).id
    [lease] = [one for one in store.run(jobs.claim("mail", limit=9)) if one.job_id == parent]
    headers = f'{{"{CONTINUES_HEADER}":"{parent}"}}'
    following = new_job(id=next_id(parent), kind="crop", headers=headers)
    store.run(jobs.settle([Continued(lease.id, lease.fence, following)]))
    shown = run("jobs", "show", parent, "--app", app).stdout
    assert f"then\n  └ crop {following.id}  pending  (continues it)\n" in shown
    assert f"     └ child {child}  leased  (waits for it)" in shown
    shown = run("jobs", "show", following.id, "--app", app).stdout
    assert f"comes after\n  └ resize {parent}  done  (it continues)" in shown
    shown = run("jobs", "show", child, "--app", app).stdout
    assert f"comes after\n  └ crop {following.id}  pending  (it waits for)" in shown
    [found] = lines(run("jobs", "show", parent, "--app", app, "--json"))
    assert found["after"][0]["after"][0]["id"] == child


def test_a_job_by_itself_has_no_family(run: Run, app: str, store: Store) -> None:
    alone = store.run(jobs.enqueue(new_job())).id
    shown = run("jobs", "show", alone, "--app", app).stdout
    assert "comes after" not in shown
    assert "then" not in shown


def test_a_parent_of_which_nothing_is_kept_is_told_by_its_end(run: Run, app: str, store: Store) -> None:
    parent = store.run(jobs.enqueue(new_job())).id
    child = store.run(jobs.enqueue(child_of(parent))).id
    leases = {lease.job_id: lease for lease in store.run(jobs.claim("mail", limit=9))}
    store.run(jobs.settle([Finish(leases[parent].id, leases[parent].fence, "done", keep=False)]))
    shown = run("jobs", "show", child, "--app", app).stdout
    assert f"└ job {parent}  done  (it waits for)" in shown


def test_a_large_batch_is_cut_short(run: Run, app: str, store: Store) -> None:
    then = new_job(headers=MARK, kind="callback")
    store.run(jobs.add_batch(then, [new_job() for _ in range(120)], fresh=True))
    shown = run("jobs", "show", then.id, "--app", app).stdout
    assert shown.count("(it waits for)") == 100
    assert shown.endswith("  … and more\n")


def test_doctor_names_a_batch_that_nobody_sealed(run: Run, app: str, store: Store) -> None:
    then = new_job(headers=MARK, kind="callback")
    store.run(jobs.add_batch(then, [], sealed=False, fresh=True))
    shown = run("doctor", "--app", app, code=7).stdout
    assert "none waits to be sealed" in shown
    with store.link() as link:
        link.tell("update holdfast_joins set created_at = 1")
    shown = run("doctor", "--app", app, code=7).stdout
    assert then.id in shown
    assert "hf.seal" in shown
