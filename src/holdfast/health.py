"""The old place of `holdfast.admin.health`: what stood here is still imported from here."""

from holdfast.admin.health import Listener as Listener
from holdfast.admin.health import LongTransaction as LongTransaction
from holdfast.admin.health import TableHealth as TableHealth
from holdfast.admin.health import database_file as database_file
from holdfast.admin.health import listener_state as listener_state
from holdfast.admin.health import long_transactions as long_transactions
from holdfast.admin.health import missing_indexes as missing_indexes
from holdfast.admin.health import table_health as table_health
