"""The old place of `holdfast.store.migrate`: what stood here is still imported from here."""

from holdfast.store.migrate import Migration as Migration
from holdfast.store.migrate import apply as apply
from holdfast.store.migrate import check as check
from holdfast.store.migrate import explained as explained
from holdfast.store.migrate import pending as pending
from holdfast.store.migrate import version as version
