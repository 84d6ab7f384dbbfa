"""A project of two apps; the environment says where nsqd is."""

import json
import os
from pathlib import Path

import django
from django.db.backends.signals import connection_created

BASE_DIR = Path(__file__).parent
SECRET_KEY = "for these tests"
ALLOWED_HOSTS = ["127.0.0.1"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = [
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "gnsqsync.django",
    "gnsqsync.django.inbox",
    "gnsqsync.django.outbox",
    "shop",
    "mail",
]
if django.VERSION >= (6,):
    INSTALLED_APPS.append("gnsqsync.django.tasks")
    # As a project has it, then ours.
    TASKS = {
        "default": {
            "BACKEND": os.environ.get("SHOP_TASKS", "gnsqsync.django.tasks.NsqBackend"),
            "QUEUES": ["default", "mail"],
        }
    }
    if "SHOP_TASK_OPTIONS" in os.environ:
        TASKS["default"]["OPTIONS"] = json.loads(os.environ["SHOP_TASK_OPTIONS"])
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
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
STATIC_URL = "static/"
ROOT_URLCONF = "urls"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "shop.sqlite3",
        "CONN_MAX_AGE": json.loads(os.environ.get("SHOP_CONN_MAX_AGE", "0")),
        "OPTIONS": {"timeout": 30},
        "TEST": {"NAME": BASE_DIR / "test.sqlite3"},
    }
}


def in_a_hurry(*, connection, **kwargs):
    """Nothing of it has to survive a crash of the machine."""
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute("PRAGMA synchronous=OFF")


connection_created.connect(in_a_hurry)

if "SHOP_POSTGRES" in os.environ:
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": os.environ["SHOP_DATABASE"],
        "USER": "postgres",
        "HOST": os.environ["SHOP_POSTGRES"],
        "CONN_MAX_AGE": json.loads(os.environ.get("SHOP_CONN_MAX_AGE", "0")),
        "CONN_HEALTH_CHECKS": True,
        "OPTIONS": {"pool": json.loads(os.environ["SHOP_POOL"])}
        if "SHOP_POOL" in os.environ
        else {},
    }
elif "SHOP_MARIADB" in os.environ:
    import pymysql

    # Django asks for a version of mysqlclient.
    pymysql.version_info = (2, 2, 8, "final", 0)
    pymysql.install_as_MySQLdb()
    DATABASES["default"] = {
        "ENGINE": "django.db.backends.mysql",
        "NAME": os.environ["SHOP_DATABASE"],
        "USER": "root",
        "HOST": os.environ["SHOP_MARIADB"],
        "CONN_MAX_AGE": json.loads(os.environ.get("SHOP_CONN_MAX_AGE", "0")),
        "CONN_HEALTH_CHECKS": True,
    }
GNSQSYNC = {
    "default": {
        "NSQD": [os.environ.get("SHOP_NSQD", "127.0.0.1:1")],
        "NSQD_HTTP": [os.environ.get("SHOP_NSQD_HTTP", "127.0.0.1:1")],
        "OPTIONS": json.loads(os.environ.get("SHOP_OPTIONS", "{}")),
        "OBSERVER": os.environ.get("SHOP_OBSERVER"),
    },
    "other": {"BACKEND": "memory"},
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"gnsqsync": {"handlers": ["console"], "level": "INFO"}},
}
