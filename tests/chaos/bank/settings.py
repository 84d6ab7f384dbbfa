"""A bank; the environment says where its database and its nsqds are, and what is switched off."""

import os
from pathlib import Path

BASE_DIR = Path(__file__).parent
SECRET_KEY = "for these tests"
ALLOWED_HOSTS = ["127.0.0.1"]
USE_TZ = True
INSTALLED_APPS = ["gnsqsync.django", "gnsqsync.django.inbox", "gnsqsync.django.outbox", "bank"]
ROOT_URLCONF = "bank.urls"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": "postgres",
        "USER": "postgres",
        "HOST": os.environ["BANK_POSTGRES"],
    }
}
# "outbox", "inbox" or "copies".
WITHOUT = os.environ["BANK_WITHOUT"]
GNSQSYNC = {
    "default": {
        "NSQD": os.environ["BANK_NSQDS"],
        "OPTIONS": {
            "headers": True,
            "copies": 1 if WITHOUT == "copies" else 2,
            "publish_timeout": 2.0,
        },
    }
}
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"line": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "line"}},
    "loggers": {"gnsqsync": {"handlers": ["console"], "level": "WARNING"}},
}
