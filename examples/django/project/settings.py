"""Settings of the shop. By default its database is a file; SHOP_ENGINE=postgresql and the rest name a server."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).resolve().parent.parent
SECRET_KEY = os.environ.get("SHOP_SECRET_KEY", "for development alone")
DEBUG = os.environ.get("SHOP_DEBUG") == "1"
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
ROOT_URLCONF = "project.urls"
WSGI_APPLICATION = "project.wsgi.application"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
EMAIL_BACKEND = "django.core.mail.backends.console.EmailBackend"

INSTALLED_APPS = [
    "holdfast.django",
    "shop",
]

_engine = os.environ.get("SHOP_ENGINE", "sqlite3")
DATABASES = {
    "default": {
        "ENGINE": f"django.db.backends.{_engine}",
        "NAME": os.environ.get("SHOP_NAME", str(BASE_DIR / "shop.db")),
        "HOST": os.environ.get("SHOP_HOST", ""),
        "PORT": os.environ.get("SHOP_PORT", ""),
        "USER": os.environ.get("SHOP_USER", ""),
        "PASSWORD": os.environ.get("SHOP_PASSWORD", ""),
        # A worker's threads keep their connections for a minute, and look whether they still stand.
        "CONN_MAX_AGE": 60,
        "CONN_HEALTH_CHECKS": True,
    }
}
if _engine == "sqlite3":
    # A transaction that reads first and writes then waits for its turn, instead of being refused.
    DATABASES["default"]["OPTIONS"] = {"transaction_mode": "IMMEDIATE"}
