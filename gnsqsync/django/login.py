"""The URL at which staff log in."""

from __future__ import annotations

from django.conf import settings
from django.urls import NoReverseMatch, reverse

__all__ = ["login_url"]


def login_url() -> str:
    """Return the URL of the login of Django's admin, or of the site."""
    try:
        return reverse("admin:login")
    except NoReverseMatch:  # a site without Django's admin
        return str(settings.LOGIN_URL)
