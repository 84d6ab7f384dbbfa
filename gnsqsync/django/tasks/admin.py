"""The results in Django's admin: to look at, and to delete."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin

from gnsqsync.django.tasks.models import StoredResult

__all__ = ["StoredResultAdmin"]

if TYPE_CHECKING:
    _Admin = admin.ModelAdmin[StoredResult]
else:
    # At run time Django's class has no type arguments.
    _Admin = admin.ModelAdmin


class StoredResultAdmin(_Admin):
    """The list of results, to look at or to delete; not to make or to change."""

    list_display: tuple[str, ...] = (
        "id",
        "task",
        "queue_name",
        "status",
        "enqueued_at",
        "started_at",
        "finished_at",
    )
    ordering: ClassVar[tuple[str, ...]] = ("-enqueued_at",)
    list_filter: ClassVar[tuple[str, ...]] = ("status", "queue_name", "backend", "task")
    search_fields: ClassVar[tuple[str, ...]] = ("id", "task")

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False


admin.site.register(StoredResult, StoredResultAdmin)
