"""The dashboard: pages for people who look after the work, and what they may do there.

A page is a talk (`talk.py`): a generator that asks flows of desks and returns a response. It does no I/O, so that one
code is mounted as WSGI and as ASGI (`wsgi.py`, `asgi.py`), below any path and without a lifespan. What stands before it
is in `guard.py` and `access.py`, what is hidden in `redaction.py`, what people do in `actions`.

Nothing here knows SQL: what a page needs of rows is a flow of a desk, of `admin`, or of the room of its surface. Only
`rendering.py` needs jinja2, so that the overview serves `holdfast top` without it.
What serves the pages belongs to the application, or to `cli`.
"""

from holdfast.dashboard.access import ACTIONS as ACTIONS
from holdfast.dashboard.access import Access as Access
from holdfast.dashboard.access import Action as Action
from holdfast.dashboard.access import by_password as by_password
from holdfast.dashboard.access import by_token as by_token
from holdfast.dashboard.board import Dashboard as Dashboard
from holdfast.dashboard.http import Request as Request
from holdfast.dashboard.http import Response as Response
