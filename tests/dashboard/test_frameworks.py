"""Mounted in frameworks: below a path of Flask, and in FastAPI and Django as the guide has it, behind their logins."""

import asyncio
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from fastapi import Request as Visit
from flask import Flask
from httpx import ASGITransport, AsyncClient
from werkzeug.middleware.dispatcher import DispatcherMiddleware
from werkzeug.test import Client as Werkzeug

from holdfast.dashboard import ACTIONS, Access, Request
from tests.dashboard.conftest import ALL, board
from tests.dashboard.ground import Shop

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "dashboard.md"

DJANGO = """
import sys
from django.conf import settings
settings.configure(
    SECRET_KEY="x" * 60, ROOT_URLCONF=__name__, ALLOWED_HOSTS=["testserver"], USE_TZ=True,
    DATABASES={"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}},
    INSTALLED_APPS=["django.contrib.auth", "django.contrib.contenttypes", "django.contrib.sessions"],
    MIDDLEWARE=["django.contrib.sessions.middleware.SessionMiddleware", "django.middleware.csrf.CsrfViewMiddleware",
                "django.contrib.auth.middleware.AuthenticationMiddleware"],
    SESSION_ENGINE="django.contrib.sessions.backends.signed_cookies", LOGIN_URL="/login/",
)
import django
django.setup()
from django.contrib.auth.decorators import login_required
from django.contrib.auth.models import User
from django.core.management import call_command
from django.test import Client
from django.urls import path
from django.views.decorators.csrf import csrf_exempt
from holdfast import Holdfast
from holdfast.dashboard import ACTIONS, Access, Request

hf = Holdfast("sqlite:///:memory:")
VIEW
view = csrf_exempt(login_required(holdfast_view))
urlpatterns = [path("ops/holdfast/", view), path("ops/holdfast/<path:path>", view)]

call_command("migrate", verbosity=0)
for name, staff in (("ada", True), ("eve", False)):
    User.objects.create_user(name, password="x", is_staff=staff, is_superuser=staff)

nobody, eve, ada = Client(), Client(), Client(enforce_csrf_checks=True)
eve.force_login(User.objects.get(username="eve"))
ada.force_login(User.objects.get(username="ada"))
assert nobody.get("/ops/holdfast/jobs").status_code == 302
assert eve.get("/ops/holdfast/jobs").status_code == 403
page = ada.get("/ops/holdfast/jobs?q=state:dead")
assert page.status_code == 200, page.content
assert b'href="/ops/holdfast/queues"' in page.content
assert page["content-security-policy"].startswith("default-src")
static = page.content.split(b'<script src="')[1].split(b'"')[0].decode()
assert ada.get(static).status_code == 200
form = {"queue": "mail", "reason": "why"}
assert ada.post("/ops/holdfast/do/pause", form, headers={"sec-fetch-site": "cross-site"}).status_code == 403
kind, ours = "application/x-www-form-urlencoded", {"sec-fetch-site": "same-origin"}
done = ada.post("/ops/holdfast/do/pause", "queue=mail", kind, headers=ours)
assert done.status_code == 200, done.content
assert [one.by for one in hf.pauses()] == ["ada"]
print("all is well")
"""


def test_the_django_view_of_the_guide_puts_djangos_login_before_it(tmp_path: Path) -> None:
    [view] = [
        one for one in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "def holdfast_view" in one
    ]
    script = tmp_path / "project.py"
    script.write_text(DJANGO.replace("VIEW", view))
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=100, check=False)
    assert done.stdout == "all is well\n", done.stderr


def test_the_fastapi_mount_of_the_guide_lets_in_whom_the_session_names(shop: Shop) -> None:
    [mount] = [one for one in re.findall(r"```python\n(.*?)```", GUIDE.read_text(), re.DOTALL) if "FastAPI()" in one]
    guide: dict[str, Any] = {"hf": shop.hf, "ACTIONS": ACTIONS, "Access": Access, "Request": Request}
    exec(mount, guide)

    def login(user_id: int, request: Visit) -> None:
        request.session["user_id"] = user_id

    guide["app"].post("/login")(login)

    async def look() -> None:
        try:
            async with AsyncClient(transport=ASGITransport(guide["app"]), base_url="http://testserver") as client:
                assert (await client.get("/holdfast/jobs")).status_code == 403
                await client.post("/login?user_id=8")
                assert (await client.get("/holdfast/jobs")).status_code == 403
                await client.post("/login?user_id=7")
                page = await client.get("/holdfast/jobs")
                assert page.status_code == 200
                assert 'href="/holdfast/queues"' in page.text
                ours = {"Sec-Fetch-Site": "same-origin"}
                done = await client.post("/holdfast/do/pause", data={"queue": "mail"}, headers=ours)
                assert done.status_code == 200
        finally:
            await shop.hf.aclose()

    asyncio.run(look())
    assert [one.by for one in shop.hf.pauses() if one.name == "mail"] == ["ada@example.com"]


def test_flask_has_it_below_a_path(shop: Shop) -> None:
    app = Flask("shop")
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/ops/holdfast": board(shop).wsgi})  # type: ignore[method-assign]
    client = Werkzeug(app)
    page = client.get("/ops/holdfast/dead")
    assert page.status_code == 200
    assert 'href="/ops/holdfast/jobs"' in page.text
    done = client.post("/ops/holdfast/do/pause", data={"queue": "mail"}, headers={"Sec-Fetch-Site": "same-origin"})
    assert done.status_code == 200
    assert client.get("/dead").status_code == 404


def test_the_environ_of_the_framework_reaches_the_access_rule(shop: Shop) -> None:
    seen: list[Any] = []

    def rule(request: Request) -> Access:
        seen.append(request.native["wsgi.url_scheme"])
        return ALL

    Werkzeug(board(shop, rule).wsgi).get("/jobs")
    assert seen == ["http"]


def test_asgi_needs_no_lifespan_and_lives_with_one(shop: Shop) -> None:
    sent: list[str] = []

    async def live() -> None:
        events = iter(("lifespan.startup", "lifespan.shutdown"))

        async def receive() -> dict[str, Any]:
            return {"type": next(events)}

        async def send(message: dict[str, Any]) -> None:
            sent.append(message["type"])

        await board(shop).asgi({"type": "lifespan"}, receive, send)

    asyncio.run(live())
    assert sent == ["lifespan.startup.complete", "lifespan.shutdown.complete"]
