"""Settings of the shop. What differs from place to place comes from the environment."""

from __future__ import annotations

import os
from pathlib import Path

import django
from django.core.management.utils import get_random_secret_key

BASE_DIR = Path(__file__).resolve().parent.parent
# The database lies there.
DATA_DIR = Path(os.environ.get("SHOP_DATA", BASE_DIR))

SECRET_KEY = os.environ.get("SHOP_SECRET_KEY") or get_random_secret_key()
DEBUG = os.environ.get("SHOP_DEBUG") == "1"
ALLOWED_HOSTS = ["127.0.0.1", "localhost"]

INSTALLED_APPS = [
    "django.contrib.staticfiles",
    "gnsqsync.django",
    "gnsqsync.django.outbox",
    "orders",
]

GNSQSYNC = {
    "default": {
        "NSQD": os.environ.get("SHOP_NSQD", "127.0.0.1:4150"),
        "NSQD_HTTP": os.environ.get("SHOP_NSQD_HTTP", "127.0.0.1:4151"),
    },
}

DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": DATA_DIR / "shop.sqlite3",
        # Seconds; the site, the relay and the consumer write by turns.
        "OPTIONS": {"timeout": 20},
    },
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

# Into a table, in the transaction of the handler; /mails/ shows it.
if django.VERSION >= (6, 1):
    MAILERS = {"default": {"BACKEND": "orders.mail.DatabaseBackend"}}
else:
    EMAIL_BACKEND = "orders.mail.DatabaseBackend"
DEFAULT_FROM_EMAIL = "The shop <orders@shop.example>"

MIDDLEWARE = [
    "django.middleware.security.SecurityMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
]

ROOT_URLCONF = "shop.urls"
WSGI_APPLICATION = "shop.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "shop" / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {"context_processors": ["django.template.context_processors.request"]},
    },
]
STATIC_URL = "static/"

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

# Without this gnsqsync's warnings are bare text in web processes (gnsqsync.W005).
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {"dated": {"format": "%(asctime)s %(levelname)s %(name)s: %(message)s"}},
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "dated"}},
    "loggers": {
        "gnsqsync": {"handlers": ["console"], "level": "WARNING"},
        "orders": {"handlers": ["console"], "level": "INFO"},
    },
}
