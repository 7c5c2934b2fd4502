"""The stores of one application, each of them once."""

from pathlib import Path

import pytest

from holdfast import Holdfast
from holdfast.errors import ConfigError
from holdfast.store import Store, Stores
from holdfast.values.options import StoreOptions


def test_the_home_is_first_and_every_database_is_there_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stores = Stores(Store("sqlite:///home.db"))
    other = stores.at("mysql://root@db/shop")
    assert stores.at() is stores.at("sqlite:///home.db") is stores.home
    assert stores.at(f"sqlite:///{tmp_path}/home.db") is stores.home, "one file has one line of writers"
    assert stores.at("mysql://root@db/shop") is other
    assert list(stores) == [stores.home, other]
    assert len(stores) == 2
    assert not list(tmp_path.iterdir()), "naming a database opens nothing"


def test_other_stores_have_the_options_of_the_home_except_those_of_one_database() -> None:
    options = StoreOptions(prefix="shop", schema="work", pool_size=3, listen_url="postgresql://direct/shop")
    other = Stores(Store("postgresql://db/shop", options)).at("mysql://root@db/shop").options
    assert (other.prefix, other.pool_size, other.schema, other.listen_url) == ("shop", 3, None, None)


def test_a_url_that_no_database_has_is_refused() -> None:
    hf = Holdfast("sqlite:///:memory:")
    with pytest.raises(ConfigError, match="url"):
        hf.stores.at("oracle://db/shop")
    assert list(hf.stores) == [hf.store]
    hf.close()
