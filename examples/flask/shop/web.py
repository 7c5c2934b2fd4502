"""The server: subscribers, and the dashboard."""

import os
import secrets

from flask import Flask, abort, jsonify, request
from flask.typing import ResponseReturnValue
from werkzeug.middleware.dispatcher import DispatcherMiddleware

from holdfast.dashboard import Access, Request
from shop import database
from shop.database import Sessions, Subscriber
from shop.jobs import confirm
from shop.work import hf


def make_app() -> Flask:
    """Make the WSGI application. A real one has migrations instead of `create_all`."""
    database.Base.metadata.create_all(database.engine)
    app = Flask(__name__)
    app.post("/subscribers")(subscribe)
    app.get("/subscribers/<email>")(show)
    app.wsgi_app = DispatcherMiddleware(app.wsgi_app, {"/holdfast": hf.dashboard(access=staff).wsgi})  # type: ignore[method-assign]
    return app


def subscribe() -> ResponseReturnValue:
    email = request.form["email"]
    with Sessions.begin() as session:
        session.add(Subscriber(email=email))
        session.flush()
        confirm.using(tx=session).enqueue(email=email)
        if "@" not in email:
            # Neither the subscriber nor the job is there after this.
            abort(422)
    return jsonify(email=email), 201


def show(email: str) -> ResponseReturnValue:
    with Sessions() as session:
        found = session.get(Subscriber, email)
        return jsonify(confirmed=found.confirmed) if found else abort(404)


def staff(request: Request) -> Access | None:
    """Let in who has the token; with SHOP_TOKEN unset, nobody."""
    token = os.environ.get("SHOP_TOKEN", "")
    said = request.headers.get("authorization", "").removeprefix("Bearer ")
    return Access("staff") if token and secrets.compare_digest(said.encode(), token.encode()) else None
