"""The database as the rest of Holdfast sees it: a `Store` that runs flows, in a transaction of its own or the caller's.

Connections, pools, callers' connections, sessions, migrations and the dialects live here, and nowhere else does
anything import a driver or ask which database it talks to. What a statement means belongs to the surfaces.
"""

from holdfast.store.sharded import Shards as Shards
from holdfast.store.store import Store as Store
from holdfast.store.stores import Stores as Stores
