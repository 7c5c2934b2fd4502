"""In tests that have asked for no database, and so have the one of development before them."""

from django.test import SimpleTestCase

from holdfast.django import hf
from holdfast.errors import ConfigError


class SimpleTests(SimpleTestCase):
    def test_nothing_of_ours_is_opened_at_the_database_of_development(self):
        assert not hf.url.endswith("_for_tests")
        for ask in (hf.worker, hf.store.open, hf.store.alend, hf.store.link().__enter__):
            with self.subTest(ask), self.assertRaisesMessage(ConfigError, "is not a test database, and tests run"):
                ask()
