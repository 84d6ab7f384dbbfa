"""The app as Django loads it: registers the system checks, and connects nothing."""

from __future__ import annotations

from types import ModuleType

from django.apps import AppConfig
from django.core.checks import register
from django.core.signals import setting_changed

from gnsqsync.django.checks import check_handlers, check_logging, check_settings
from gnsqsync.django.management import wait_for_repair
from gnsqsync.django.writers import forget_writers

__all__ = ["GnsqsyncConfig"]


class GnsqsyncConfig(AppConfig):
    name = "gnsqsync.django"
    # Django's default, the last word of the name, would be "django".
    label = "gnsqsync"
    verbose_name: str = "NSQ"

    def __init__(self, app_name: str, app_module: ModuleType | None) -> None:
        """Load the app. With --reload, an error of a later app makes the command wait."""
        wait_for_repair()
        super().__init__(app_name, app_module)

    def ready(self) -> None:
        register(check_settings, "gnsqsync")
        register(check_handlers, "gnsqsync")
        register(check_logging, "gnsqsync")
        setting_changed.connect(_on_setting_changed)


def _on_setting_changed(*, setting: str, **kwargs: object) -> None:
    # A test changes settings by override_settings().
    if setting == "GNSQSYNC":
        forget_writers()
