"""A project of two apps; the environment says where nsqd is."""

import json
import os
from pathlib import Path

BASE_DIR = Path(__file__).parent
SECRET_KEY = "for these tests"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
INSTALLED_APPS = ["gnsqsync.django", "shop", "mail"]
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": BASE_DIR / "shop.sqlite3",
        "CONN_MAX_AGE": json.loads(os.environ.get("SHOP_CONN_MAX_AGE", "0")),
        "OPTIONS": {"timeout": 30},
        "TEST": {"NAME": BASE_DIR / "test.sqlite3"},
    }
}
GNSQSYNC = {
    "default": {
        "NSQD": [os.environ.get("SHOP_NSQD", "127.0.0.1:1")],
        "NSQD_HTTP": [os.environ.get("SHOP_NSQD_HTTP", "127.0.0.1:1")],
        "OPTIONS": json.loads(os.environ.get("SHOP_OPTIONS", "{}")),
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
