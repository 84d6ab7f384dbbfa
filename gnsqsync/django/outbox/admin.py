"""The outbox in Django's admin: what waits, what failed, and another try."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.utils import timezone

from gnsqsync.django.outbox.models import OutboxMessage
from gnsqsync.stats import counted

__all__ = ["OutboxMessageAdmin"]


if TYPE_CHECKING:
    _Admin = admin.ModelAdmin[OutboxMessage]
else:
    # At run time Django's has no type arguments.
    _Admin = admin.ModelAdmin


class StateFilter(admin.SimpleListFilter):
    title: str = "state"
    parameter_name: str = "state"

    def lookups(self, request: Any, model_admin: Any) -> list[tuple[str, str]]:
        return [("waiting", "waiting"), ("failed", "failed")]

    def queryset(self, request: Any, queryset: Any) -> Any:
        if self.value() is None:
            return queryset
        return queryset.filter(failed_at__isnull=self.value() == "waiting")


def try_again(model_admin: Any, request: Any, queryset: Any) -> None:
    """Failed messages wait again, and waiting ones are due at once."""
    count = queryset.update(failed_at=None, retry_at=timezone.now(), attempts=0)
    model_admin.message_user(request, f"Due now: {counted(count, 'message')}.")


class OutboxMessageAdmin(_Admin):
    """Messages are looked at, tried again or deleted; not made or changed."""

    list_display: tuple[str, ...] = (
        "id",
        "topic",
        "alias",
        "state",
        "created_at",
        "attempts",
        "last_error",
    )
    list_filter: ClassVar[tuple[type[StateFilter] | str, ...]] = (StateFilter, "alias", "topic")
    search_fields: ClassVar[tuple[str, ...]] = ("topic", "last_error")
    actions: tuple[Callable[..., None], ...] = (
        admin.action(permissions=["change"], description="Try again")(try_again),
    )
    exclude: ClassVar[tuple[str, ...]] = ("body",)
    readonly_fields: ClassVar[tuple[str, ...]] = ("body_text",)

    def state(self, message: OutboxMessage) -> str:
        return "waiting" if message.failed_at is None else "failed"

    def body_text(self, message: OutboxMessage) -> str:
        """Its first thousand bytes."""
        return bytes(message.body[:1000]).decode(errors="backslashreplace")

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        # Of single messages; the list needs it for its actions.
        return obj is None and super().has_change_permission(request)


admin.site.register(OutboxMessage, OutboxMessageAdmin)
