"""The outbox in Django's admin: waiting and failed messages, and another try."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.db.models import Q

from gnsqsync.django.moments import now
from gnsqsync.django.outbox.models import OutboxMessage, PeriodicMessage
from gnsqsync.outbox.table_store import due_again
from gnsqsync.stats import counted

__all__ = ["OutboxMessageAdmin", "PeriodicMessageAdmin"]


if TYPE_CHECKING:
    _Admin = admin.ModelAdmin[OutboxMessage]
    _PeriodicAdmin = admin.ModelAdmin[PeriodicMessage]
else:
    # At run time Django's class has no type arguments.
    _Admin = _PeriodicAdmin = admin.ModelAdmin


class StateFilter(admin.SimpleListFilter):
    title: str = "state"
    parameter_name: str = "state"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [("waiting", "waiting"), ("scheduled", "scheduled"), ("failed", "failed")]

    def queryset(self, request: Any, queryset: Any) -> Any:
        if self.value() is None:
            return queryset
        if self.value() == "failed":
            return queryset.filter(failed_at__isnull=False)
        is_scheduled = Q(deliver_at__gt=now())
        wanted = is_scheduled if self.value() == "scheduled" else ~is_scheduled
        return queryset.filter(wanted, failed_at=None)


def try_again(model_admin: Any, request: Any, queryset: Any) -> None:
    """Make failed and waiting messages due at once. Scheduled messages are unchanged."""
    due = queryset.exclude(deliver_at__gt=now())
    count = due.update(**due_again())
    model_admin.message_user(request, f"Due now: {counted(count, 'message')}.")


class OutboxMessageAdmin(_Admin):
    """The list of messages, to look at, to try again or to delete; not to make or to change."""

    list_display: tuple[str, ...] = (
        "id",
        "topic",
        "alias",
        "key",
        "state",
        "deliver_at",
        "created_at",
        "attempts",
        "last_error",
    )
    list_filter: ClassVar[tuple[type[StateFilter] | str, ...]] = (StateFilter, "alias", "topic")
    search_fields: ClassVar[tuple[str, ...]] = ("topic", "key", "last_error")
    actions: tuple[Callable[..., None], ...] = (
        admin.action(permissions=["change"], description="Try again")(try_again),
    )
    exclude: ClassVar[tuple[str, ...]] = ("body",)
    readonly_fields: ClassVar[tuple[str, ...]] = ("body_text",)

    def state(self, message: OutboxMessage) -> str:
        if message.failed_at is not None:
            return "failed"
        is_later = message.deliver_at is not None and message.deliver_at > now()
        return "scheduled" if is_later else "waiting"

    def body_text(self, message: OutboxMessage) -> str:
        """Return the first thousand bytes of the body as text."""
        return bytes(message.body[:1000]).decode(errors="backslashreplace")

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        # Single messages cannot be changed. The list needs the permission for its actions.
        return obj is None and super().has_change_permission(request)


class PeriodicMessageAdmin(_PeriodicAdmin):
    """The list of periodic messages, to look at or to delete. schedule.periodic() changes them."""

    list_display: tuple[str, ...] = (
        "name",
        "cron",
        "timezone",
        "missed",
        "topic",
        "alias",
        "next_at",
    )
    search_fields: ClassVar[tuple[str, ...]] = ("name", "topic")
    exclude: ClassVar[tuple[str, ...]] = ("body",)
    readonly_fields: ClassVar[tuple[str, ...]] = ("body_text",)

    def body_text(self, message: PeriodicMessage) -> str:
        """Return the first thousand bytes of the body as text."""
        return bytes(message.body[:1000]).decode(errors="backslashreplace")

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False


admin.site.register(OutboxMessage, OutboxMessageAdmin)
admin.site.register(PeriodicMessage, PeriodicMessageAdmin)
