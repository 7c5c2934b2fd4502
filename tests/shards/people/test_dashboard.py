"""The dashboard of an application with shards."""

from typing import Any

import pytest

from holdfast.dashboard import ACTIONS, Access
from holdfast.values.shards import stamp_of
from tests.dashboard.client import Client
from tests.shards.people.grounds import SHARDS, Shop


def client_of(shop: Shop, colour: str = "wsgi") -> Client:
    return Client(shop.hf.dashboard(access=lambda _request: Access("ada", tuple(ACTIONS))), colour)


@pytest.mark.parametrize("colour", ["wsgi", "asgi"])
def test_the_overview_shows_all_shards(shop: Shop, colour: str) -> None:
    ids = shop.add()
    shop.kill(1)
    page = client_of(shop, colour).get("/")
    assert page.status == 200
    assert f'<span class="big">{len(ids) - 1}</span><span>due now</span>' in page.text
    assert "1 × send" in page.text
    assert '<h2 id="shards">Shards</h2>' in page.text
    assert page.text.count('<td class="mono">') == SHARDS
    assert "does not answer" not in page.text


def test_a_page_of_a_job_names_its_shard(shop: Shop) -> None:
    for job in shop.add(1):
        page = client_of(shop).get(f"/job?id={job}")
        assert f"<dt>shard</dt><dd>{stamp_of(job)}</dd>" in page.text


def test_jobs_are_listed_in_pages(shop: Shop) -> None:
    ids = shop.add()
    text = client_of(shop).get("/jobs").text
    assert all(job in text for job in ids)


@pytest.mark.parametrize(
    "path", ["dead", "queues", "schedules", "workers", "outbox", "runs", "stores", "audit", "lines?queue=orders"]
)
def test_every_page_is_there(shop: Shop, path: str) -> None:
    shop.add(1)
    shop.kill(0)
    shop.hf.pause("orders")
    assert client_of(shop).get(f"/{path}").status == 200


def test_letters_of_all_shards_are_replayed_together(shop: Shop) -> None:
    shop.add()
    for number in range(SHARDS):
        shop.kill(number)
    client = client_of(shop)
    done = client.submit(client.get("/ask/replay?q=kind:send").page.form("/do/replay"))
    assert done.status == 200
    assert shop.hf.store.run(_letters()) == 0


def _letters() -> Any:
    from holdfast.admin import JobsDesk

    return JobsDesk().count_letters()


@pytest.mark.parametrize("colour", ["wsgi", "asgi"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_shard_that_is_away_is_told_and_the_others_are_shown(files: Shop, colour: str, lost: int) -> None:
    ids = files.add()
    files.lose(lost)
    client = client_of(files, colour)
    overview = client.get("/")
    assert overview.status == 200
    assert f"shard {lost} does not answer" in overview.text
    assert "not reached" in overview.text
    text = client.get("/jobs").text
    assert f"shard {lost} does not answer" in text
    assert {job for job in ids if job in text} == {job for job in ids if stamp_of(job) != lost}
