"""Schedules as an application writes them."""

from datetime import UTC, datetime, timedelta
from typing import Literal, assert_type

from holdfast import Holdfast, Schedule

hf = Holdfast("sqlite:///shop.db")


@hf.job
async def report(day: str) -> None: ...


nightly = hf.schedule("nightly", report.bind(day="yesterday"), cron="0 2 * * *", timezone="Europe/Berlin")
assert_type(nightly, Schedule)
assert_type(hf.schedule("often", report.using(queue="fast").bind("now"), every=timedelta(minutes=5)), Schedule)
hf.schedule("seldom", hf.bind("report", {"day": "x"}), every=3600, catch_up="all")
assert_type(nightly.upcoming(3, after=datetime.now(UTC)), list[datetime])
assert_type(nightly.cron, str | None)
assert_type(hf.sync_schedules(), dict[str, Literal["created", "changed", "same", "kept"]])

hf.schedule("wrong", report.bind(day=5), cron="0 2 * * *")  # error: arg-type, reportArgumentType
hf.schedule("wrong", report, cron="0 2 * * *")  # error: arg-type, reportArgumentType
hf.schedule("wrong", report.bind(day="x"), cron=5)  # error: arg-type, reportArgumentType
hf.schedule("wrong", report.bind(day="x"), every="5m")  # error: arg-type, reportArgumentType
hf.schedule("wrong", report.bind(day="x"), every=60, catch_up="some")  # error: arg-type, reportArgumentType
