"""Dead letters of the handlers as a page in the look of Django's admin:
``path("dead-letters/", include("gnsqsync.django.dead_letters"))``.

Staff may look, at the ``dead_letter_topic`` of each handler. To send letters back or to purge them
takes what nsqadmin takes: a superuser, or the permission of ``ADMIN_PERMISSION``.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.urls import URLPattern, path
from django.views.decorators.csrf import csrf_protect

from gnsqsync.dead_letters import DeadLetter, DeadLetters, Filter
from gnsqsync.django.config import Alias, get_alias
from gnsqsync.django.handlers import all_handlers
from gnsqsync.django.login import login_url
from gnsqsync.errors import NSQError
from gnsqsync.service.dead_letters import text_of
from gnsqsync.stats import counted

__all__ = ["dead_letters", "urlpatterns"]

CHANNEL = "dead_letters"
# Letters on the page, and those among which a chosen one is looked for.
_SHOWN, _SEARCHED = 200, 10_000


@csrf_protect
def dead_letters(request: HttpRequest) -> HttpResponseBase:
    """The list, one letter (``?id=``), or what a form asks for.

    Raises:
        PermissionDenied: The user is no staff, or may not act.
        Http404: No handler has this topic for dead letters.
    """
    user: Any = request.user
    if not user.is_authenticated and request.method == "GET":
        return redirect_to_login(request.get_full_path(), login_url())
    if not admin.site.has_permission(request):
        raise PermissionDenied("dead letters are for staff")
    topics = _topics()
    name = request.GET.get("topic") or next(iter(topics), "")
    if request.GET.get("topic") and name not in topics:
        raise Http404(f"no handler has the dead_letter_topic {name}")
    alias = topics.get(name)
    may_act = bool(
        user.is_superuser
        or (alias and alias.admin_permission and user.has_perm(alias.admin_permission))
    )
    if request.method == "POST":
        if not may_act or alias is None:
            raise PermissionDenied("you may look, but not act")
        return _act(request, alias, name)
    chosen = request.GET.get("id", "")
    found: list[DeadLetter] = []
    problems: list[str] = []
    waiting: int | None = 0
    if alias is not None:
        found, problems, waiting = _look(alias, name, chosen)
    context = {
        **admin.site.each_context(request),
        "title": "Dead letters",
        "topics": topics,
        "topic": name,
        "letters": found,
        "waiting": waiting,
        "problems": problems,
        "chosen": chosen,
        "text": "\n".join(text_of(found[0])) if chosen and found else "",
        "may_act": may_act,
    }
    return render(request, "gnsqsync/dead_letters.html", context)


def _topics() -> dict[str, Alias]:
    """The topics that handlers have for dead letters, with the nsqds where they are."""
    topics: dict[str, Alias] = {}
    for handler in all_handlers():
        alias = get_alias(handler.alias)
        topic = {**alias.options, **handler.options}.get("dead_letter_topic")
        if topic and not alias.is_captured:
            topics[topic] = alias
    return dict(sorted(topics.items()))


def _letters(alias: Alias, topic: str, limit: int) -> DeadLetters:
    return DeadLetters(topic, CHANNEL, limit=limit, **alias.dead_letters_keywords())


def _look(alias: Alias, topic: str, chosen: str) -> tuple[list[DeadLetter], list[str], int | None]:
    where = Filter(ids=[chosen] if chosen else ())
    found = []
    with _letters(alias, topic, _SEARCHED if chosen else _SHOWN) as letters:
        for letter in letters:
            if where.matches(letter):
                found.append(letter)
                if chosen:
                    break
        return found, letters.problems, letters.waiting


def _act(request: HttpRequest, alias: Alias, topic: str) -> HttpResponse:
    ids = request.POST.getlist("id")
    back = f"{request.path}?{urlencode({'topic': topic})}"
    verb = request.POST.get("verb")
    if verb not in ("requeue", "purge") or not ids:
        messages.error(request, "Choose letters, and what to do with them.")
        return HttpResponseRedirect(back)
    left = set(ids)
    failures: dict[str, None] = {}

    def told(letter: DeadLetter, error: NSQError | None) -> None:
        left.discard(letter.message_id)
        if error is not None:
            failures[str(error)] = None
        if not left:
            letters.stop()

    where = Filter(ids=ids)
    with _letters(alias, topic, _SEARCHED) as letters:
        if verb == "requeue":
            tally = letters.requeue_all(where, told=told)
        else:
            tally = letters.purge_all(where, told=told)
    done = "sent back" if verb == "requeue" else "purged"
    messages.success(request, f"{counted(tally.done, 'letter')} {done}.")
    for text in [*failures, *letters.problems]:
        messages.error(request, text)
    if left and not failures:
        messages.error(request, f"{counted(len(left), 'letter')} did not come.")
    return HttpResponseRedirect(back)


urlpatterns: list[URLPattern] = [path("", dead_letters, name="nsq_dead_letters")]
