"""Links to the pages of dead letters and to nsqadmin, in the list of Django's admin.

Django's admin lists models. The two models here have no table: their lines lead to pages that the
site includes in its URLs. Without such a page its line is not shown.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from django.contrib import admin
from django.db import models
from django.http import HttpResponseRedirect
from django.urls import NoReverseMatch, reverse

__all__ = ["DeadLettersLink", "NsqadminLink"]

if TYPE_CHECKING:
    _Admin = admin.ModelAdmin[models.Model]
else:
    # At run time Django's class has no type arguments.
    _Admin = admin.ModelAdmin


class _Line(models.Model):
    """A line of the list, which has no table and no permissions."""

    id: models.CharField[str, str] = models.CharField(primary_key=True, max_length=1)

    class Meta:
        abstract = True
        app_label = "gnsqsync"
        managed = False
        default_permissions: ClassVar[tuple[str, ...]] = ()


class DeadLetters(_Line):
    """The line of the page of dead letters."""

    class Meta(_Line.Meta):
        verbose_name_plural = "dead letters"


class Nsqadmin(_Line):
    """The line of nsqadmin."""

    class Meta(_Line.Meta):
        verbose_name_plural = "nsqadmin"


class _Link(_Admin):
    """A line of the list that leads to a page of the site. Staff see it if that page exists."""

    view_name: ClassVar[str]
    keywords: ClassVar[dict[str, str]] = {}

    def page(self) -> str:
        """Return the URL of the page; empty if the site does not include the page."""
        try:
            return reverse(self.view_name, kwargs=self.keywords)
        except NoReverseMatch:
            return ""

    def has_module_permission(self, request: Any) -> bool:
        return bool(admin.site.has_permission(request) and self.page())

    def has_view_permission(self, request: Any, obj: Any = None) -> bool:
        return self.has_module_permission(request)

    def has_add_permission(self, request: Any) -> bool:
        return False

    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        return False

    def get_urls(self) -> list[Any]:
        """Return the URL of the list only, because there are no objects."""
        return [url for url in super().get_urls() if str(url.name).endswith("_changelist")]

    def changelist_view(self, request: Any, extra_context: Any = None) -> Any:
        """Redirect to the page. The page itself checks who may look."""
        return HttpResponseRedirect(self.page() or reverse("admin:index"))


class DeadLettersLink(_Link):
    view_name = "nsq_dead_letters"


class NsqadminLink(_Link):
    view_name = "nsqadmin"
    keywords: ClassVar[dict[str, str]] = {"path": ""}


admin.site.register(DeadLetters, DeadLettersLink)
admin.site.register(Nsqadmin, NsqadminLink)
