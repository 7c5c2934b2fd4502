import json
import os
from importlib.util import find_spec

from holdfast import Retry

said = json.loads(os.environ["TASKSHOP"])
if said["DATABASE"]["ENGINE"].endswith("mysql"):
    import pymysql

    # Django knows mysqlclient only, of a version that PyMySQL does not name by itself.
    pymysql.version_info = (2, 2, 1, "final", 0)  # type: ignore[assignment]
    pymysql.install_as_MySQLdb()

SECRET_KEY = "of no use to anybody, and long enough for Django's own check of it"
ALLOWED_HOSTS = ["testserver"]
USE_TZ = said.get("USE_TZ", True)
TIME_ZONE = "Europe/Berlin"
ROOT_URLCONF = "taskshop.urls"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
# Named as one for tests: workers keep away from others while tests run.
DATABASES = {"default": said["DATABASE"] | {"TEST": {"NAME": said["DATABASE"]["NAME"]}}}
HOLDFAST = said.get("HOLDFAST", {})
INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.admin",
    "holdfast.django",
    "taskshop",
    *([] if find_spec("django.tasks") else ["django_tasks"]),
]
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
TASKS = {
    "default": {
        "BACKEND": "holdfast.django.tasks.HoldfastBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"database": "default"},
    },
    "once": {
        "BACKEND": "holdfast.django.tasks.HoldfastBackend",
        "OPTIONS": {"retry": Retry(max_attempts=1), "lease": 90},
    },
}
