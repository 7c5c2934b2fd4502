"""The dashboard in a real browser: what people do there, by keyboard too, live, on a phone, and for everybody."""

import os
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from holdfast import admin
from holdfast.observe import Depth, Figures, Folded
from tests.dashboard.browser import browser, serious, served
from tests.dashboard.conftest import ALL, READ, board
from tests.dashboard.ground import Shop

IMAGES = Path(__file__).resolve().parents[2] / "docs" / "images"
PAGES = {
    "overview": "/",
    "jobs": "/jobs",
    "dead": "/dead",
    "queues": "/queues",
    "schedules": "/schedules",
    "workers": "/workers",
    "outbox": "/outbox",
    "runs": "/runs",
    "run": "/run?id=order-1",
    "stores": "/stores",
    "audit": "/audit",
    "ask": "/ask/replay?q=kind:send_receipt&back=dead",
}
# As wide as the docs show them, and what fits a screen.
SCREEN = {"width": 1180, "height": 760}
PHONE = {"width": 390, "height": 844}
SMALLEST = """Math.min(...[...document.querySelectorAll("main *")]
    .filter((each) => each.innerText && each.offsetParent)
    .map((each) => parseFloat(getComputedStyle(each).fontSize)))"""


# Whether somebody looks at the page: a browser without a screen always says yes.
HIDE = """hidden => {
    Object.defineProperty(document, "hidden", {get: () => hidden, configurable: true});
    document.dispatchEvent(new Event("visibilitychange"));
}"""
# How many points of each chart have the colour of its first line: the axes alone have none.
DRAWN = """[...document.querySelectorAll("[data-chart]")].map((plot) => {
    const canvas = plot.querySelector(".uplot canvas");
    if (!canvas) return 0;
    const copy = Object.assign(document.createElement("canvas"), {width: canvas.width, height: canvas.height});
    const brush = copy.getContext("2d", {willReadFrequently: true});
    brush.drawImage(canvas, 0, 0);
    const points = brush.getImageData(0, 0, copy.width, copy.height).data;
    let found = 0;
    for (let at = 0; at < points.length; at += 4)
        found += points[at + 3] === 255 && points[at] === 0x0f && points[at + 1] === 0x76 && points[at + 2] === 0x6e;
    return found;
})"""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as running:
        yield running


@pytest.fixture
def screen(chromium: Any) -> Iterator[Any]:
    """A page whose console must stay silent: no script failed, and the policy refused nothing."""
    context = chromium.new_context(viewport=SCREEN, color_scheme="light")
    page = context.new_page()
    said: list[str] = []
    page.on("console", lambda line: said.append(line.text) if line.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: said.append(str(error)))
    page.said = said
    yield page
    context.close()
    assert said == []


def test_a_dead_group_is_found_previewed_replayed_and_seen_to_run(shop: Shop, screen: Any) -> None:
    with served(board(shop)) as address:
        screen.goto(address)
        screen.click("text=Dead letters >> nth=0")
        screen.click("#group-1 >> text=Replay…")
        assert screen.inner_text("h1") == "Replay 8 dead letters?"
        assert screen.locator("tbody tr").count() == 8
        screen.click("[data-yes]")
        assert screen.inner_text("h1") == "8 dead letters replayed"
        screen.click("text=Watch them run")
        screen.wait_for_selector("text=pending")
        assert shop.hf.store.run(admin.count_jobs(admin.Filter(states=("dead",), kind="send_receipt"))) == 0
        _finish(shop)
        # The page looks again by itself.
        expect(screen.locator(".state.pending")).to_have_count(0, timeout=15_000)


def _finish(shop: Shop) -> None:
    """Do the jobs of the queue as a worker would."""
    from holdfast import jobs
    from holdfast.values.rows import Finish

    leases = shop.hf.store.run(jobs.claim(["mail"], limit=100, worker="web1-4821-7f3a", lease_ms=60_000))
    shop.hf.store.run(jobs.settle([Finish(one.job_id, one.fence, "done", None, None) for one in leases]))
    shop.hf.cancel(kind="send_receipt", state="pending")
    shop.hf.cancel(kind="remind")


def test_a_large_replay_goes_on_by_itself(shop: Shop, screen: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    from holdfast.dashboard.actions import letters

    monkeypatch.setattr(letters, "PART", 3)
    with served(board(shop)) as address:
        screen.goto(f"{address}/ask/replay?q=kind:send_receipt&back=dead")
        screen.click("[data-yes]")
        screen.wait_for_selector("text=8 dead letters replayed", timeout=10_000)
        assert screen.locator("progress").count() == 0


def test_a_queue_is_paused_and_resumed(shop: Shop, screen: Any) -> None:
    with served(board(shop)) as address:
        screen.goto(f"{address}/queues")
        screen.click("tr:has-text('mail') >> text=Pause")
        screen.fill("#in-reason", "the provider is down")
        screen.click("[data-yes]")
        screen.click("a.button:has-text('Queues')")
        assert "the provider is down" in screen.inner_text("tr:has-text('mail')")
        screen.click("tr:has-text('mail') >> text=Resume")
        screen.click("[data-yes]")
        screen.click("a.button:has-text('Queues')")
        assert "the provider is down" not in screen.inner_text("main")


def test_pages_are_live_while_nothing_is_chosen_or_open(shop: Shop, screen: Any) -> None:
    with served(board(shop, refresh=1)) as address:
        screen.goto(f"{address}/jobs?q=queue:fresh")
        assert "No job fits" in screen.inner_text("main")
        shop.report.using(queue="fresh").enqueue(day="now")
        screen.wait_for_selector("tbody tr", timeout=10_000)
        screen.check("tbody input[type=checkbox]")
        assert screen.inner_text("[data-chosen]") == "1 chosen"
        shop.report.using(queue="fresh").enqueue(day="now")
        screen.wait_for_timeout(1_600)
        assert screen.locator("tbody tr").count() == 1
        screen.uncheck("tbody input[type=checkbox]")
        screen.locator("h1").click()
        expect(screen.locator("tbody tr")).to_have_count(2, timeout=10_000)
        assert screen.locator("#live").inner_text() == "live"


def test_a_page_that_is_not_seen_asks_for_nothing_and_looks_at_once_when_it_is(shop: Shop, screen: Any) -> None:
    asked: list[str] = []
    # The browser fetches the page's icon by itself, when it has time.
    screen.on("request", lambda request: None if "/static/" in request.url else asked.append(request.url))
    screen.clock.install()
    with served(board(shop, refresh=1)) as address:
        screen.goto(f"{address}/jobs?q=queue:fresh")
        with screen.expect_response("**/jobs?q=queue:fresh"):
            screen.clock.run_for(1_100)
        screen.evaluate(HIDE, True)
        asked.clear()
        screen.clock.run_for(60_000)
        # What it had asked for by then would have been sent before this.
        screen.evaluate("fetch('./workers').then((answer) => answer.text())")
        assert asked == [f"{address}/workers"]
        shop.report.using(queue="fresh").enqueue(day="now")
        screen.evaluate(HIDE, False)
        screen.clock.run_for(100)
        expect(screen.locator("tbody tr")).to_have_count(1, timeout=10_000)
        # It looks each second, and would look once more when the server is gone.
        screen.goto("about:blank")


def test_charts_are_drawn_in_the_colours_of_the_theme(shop: Shop, screen: Any) -> None:
    shop.write_history(30)
    with served(board(shop)) as address:
        screen.goto(address)
        screen.wait_for_selector(".uplot canvas")
        drawn = _until_drawn(screen, lambda points: points > 20)
        assert len(drawn) == screen.locator(".chart").count() >= 3
        assert screen.locator(".uplot .u-series").count() > screen.locator(".uplot").count()
        screen.keyboard.press("t")
        _until_drawn(screen, lambda points: points == 0)
        assert screen.locator(".uplot").count() == screen.locator(".chart").count()
        screen.keyboard.press("t")
        _until_drawn(screen, lambda points: points > 20)


def test_a_name_in_a_chart_is_text(shop: Shop, screen: Any) -> None:
    """CVE-2021-30151: Sidekiq's page ran the name of a queue."""
    name = "<img src=x onerror=alert(1)>"
    shop.hf.store.now = datetime.now(UTC) - timedelta(minutes=1)
    shop.note(Folded({(name, "act"): Figures({"done": 1})}, {name: Depth(50, oldest=99.0)}))
    shop.hf.store.now = None
    with served(board(shop)) as address:
        screen.goto(f"{address}/?period=2m")
        screen.wait_for_selector(".uplot canvas")
        assert name in screen.locator(".u-legend .u-label").all_text_contents()
        assert screen.locator("main img").count() == 0
        screen.keyboard.press("r")
        screen.wait_for_timeout(300)
        assert screen.locator("main img").count() == 0


def _until_drawn(screen: Any, are_right: Callable[[int], bool]) -> list[int]:
    """Wait until all charts look as they should: uPlot draws a moment after it is told. Asked from here, as the page's
    policy lets no script of ours wait in it."""
    drawn: list[int] = []
    for _ in range(200):
        drawn = screen.evaluate(DRAWN)
        if drawn and all(map(are_right, drawn)):
            return drawn
        screen.wait_for_timeout(50)
    raise AssertionError(f"points of the first line in each chart: {drawn}")


def test_keys_search_move_choose_open_and_switch_the_theme(shop: Shop, screen: Any) -> None:
    with served(board(shop)) as address:
        screen.goto(f"{address}/jobs")
        screen.keyboard.press("/")
        assert screen.evaluate("document.activeElement.id") == "q"
        screen.keyboard.type("state:dead queue:images")
        screen.keyboard.press("Enter")
        screen.wait_for_url("**q=state*")
        assert screen.locator("tbody tr").count() == 5
        for key in "jjkjx":
            screen.keyboard.press(key)
        assert screen.locator("tr.at").get_attribute("id") == screen.locator("tbody tr").nth(1).get_attribute("id")
        assert screen.inner_text("[data-chosen]") == "1 chosen"
        screen.keyboard.press("x")
        screen.keyboard.press("r")
        screen.wait_for_timeout(300)
        assert screen.locator("tr.at").count() == 1
        screen.keyboard.press("o")
        screen.wait_for_url("**/job?id=*")
        screen.keyboard.press("?")
        assert screen.locator("#help").is_visible()
        screen.keyboard.press("Escape")
        expect(screen.locator("#help")).to_be_hidden()
        before = screen.evaluate("getComputedStyle(document.body).backgroundColor")
        screen.keyboard.press("t")
        screen.wait_for_function("before => getComputedStyle(document.body).backgroundColor !== before", arg=before)
        screen.reload()
        assert screen.evaluate("document.documentElement.dataset.theme") == "dark"
        screen.keyboard.press("g")
        screen.keyboard.press("w")
        screen.wait_for_url("**/workers")


def test_without_javascript_everything_works(shop: Shop, chromium: Any) -> None:
    context = chromium.new_context(viewport=SCREEN, java_script_enabled=False)
    page = context.new_page()
    with served(board(shop)) as address:
        page.goto(f"{address}/jobs?q=state:dead+queue:images")
        page.locator("tbody input[type=checkbox]").first.check()
        page.click("button:has-text('Retry')")
        page.click("[data-yes]")
        assert "1 job will run" in page.inner_text("h1")
        page.goto(address)
        assert page.locator("[hidden] >> visible=true").count() == 0
        page.click("summary >> nth=0") if page.locator("summary").count() else None
    context.close()


def pages(page: Any, address: str, shop: Shop) -> Iterator[str]:
    """Open each page, those that need an id and the answer to a form with them, and name it."""
    [dead] = shop.hf.store.run(admin.list_jobs(admin.Filter(key="order:24")))
    for name, path in {**PAGES, "job": f"/job?id={dead.id}", "lines": "/lines?queue=orders"}.items():
        page.goto(address + path)
        yield name
    page.goto(f"{address}/ask/pause?queue=mail")
    page.click("[data-yes]")
    page.wait_for_selector("h1[role=status]")
    yield "done"


def test_axe_finds_nothing_serious_in_light_and_dark(shop: Shop, screen: Any) -> None:
    shop.write_history(30)
    with served(board(shop)) as address:
        for theme in ("light", "dark"):
            screen.emulate_media(color_scheme=theme)
            for name in pages(screen, address, shop):
                assert serious(screen) == [], f"{theme} {name}"


def test_pages_are_readable_on_a_phone(shop: Shop, chromium: Any) -> None:
    context = chromium.new_context(viewport=PHONE, has_touch=True, is_mobile=True)
    page = context.new_page()
    shop.write_history(30)
    with served(board(shop)) as address:
        for name in pages(page, address, shop):
            wide = page.evaluate("document.documentElement.scrollWidth")
            assert wide <= PHONE["width"], f"{name} is {wide} wide: it would have to be moved sideways"
            small = page.evaluate(SMALLEST)
            assert small >= 10.5, f"{name} has letters of {small} px"
        # What went wrong is seen without moving a table sideways, and where one is among the pages, too.
        page.goto(f"{address}/jobs?q=state:dead")
        for what in (".jobs tbody .error", ".jobs tbody .state", "nav [aria-current=page]"):
            box = page.locator(what).first.bounding_box()
            assert box["x"] >= 0
            assert box["x"] + box["width"] <= PHONE["width"], what
        page.goto(f"{address}/workers")
        box = page.locator("nav [aria-current=page]").bounding_box()
        assert box["x"] + box["width"] <= PHONE["width"]
    context.close()


def test_pictures_of_each_page_for_the_docs(shop: Shop, screen: Any, tmp_path: Path) -> None:
    """With HOLDFAST_IMAGES=write the pictures in docs/images are made anew."""
    shop.write_history(60)
    shop.claim()
    folder = IMAGES if os.environ.get("HOLDFAST_IMAGES") == "write" else tmp_path
    with served(board(shop, ALL)) as address:
        [dead] = shop.hf.store.run(admin.list_jobs(admin.Filter(key="order:24")))
        shop.hf.store.run(admin.retry(dead.id, "grace@ops1"))
        for name, path in {**PAGES, "job": f"/job?id={dead.id}"}.items():
            screen.goto(address + path)
            screen.wait_for_timeout(150)
            screen.screenshot(path=folder / f"dashboard-{name}.png")
        screen.emulate_media(color_scheme="dark")
        screen.goto(address)
        screen.wait_for_timeout(150)
        screen.screenshot(path=folder / "dashboard-dark.png")
    for name in (*PAGES, "job", "dark"):
        assert (IMAGES / f"dashboard-{name}.png").exists(), f"no picture of {name}: HOLDFAST_IMAGES=write makes it"
    assert READ.actions == ()
