"""Dead letters of the handlers as a page in the look of Django's admin.

Add ``path("dead-letters/", include("gnsqsync.django.dead_letters"))`` to the URLs. Staff may look
at the ``dead_letter_topic`` of each handler. Superusers may send letters back or purge them, and so
may staff with the permission of ``ADMIN_PERMISSION``, as in nsqadmin. Each act leaves an entry in
the log of Django's admin. A purge asks for confirmation.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import urlencode

from django.contrib import admin, messages
from django.contrib.admin.models import CHANGE, DELETION, LogEntry
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import PermissionDenied
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseBase, HttpResponseRedirect
from django.shortcuts import render
from django.urls import NoReverseMatch, URLPattern, path, reverse
from django.views.decorators.csrf import csrf_protect

from gnsqsync.commands.integrations import topics_of
from gnsqsync.commands.letter_actions import text_of
from gnsqsync.dead_letters import DeadLetter, DeadLetters, Filter
from gnsqsync.dead_letters.places import CHANNEL
from gnsqsync.django.config import Alias, get_alias
from gnsqsync.django.handlers import all_handlers
from gnsqsync.django.login import login_url
from gnsqsync.errors import ConfigError, NSQError
from gnsqsync.stats import counted

__all__ = ["dead_letters", "page_of", "urlpatterns"]

# Largest number of letters on the page.
_SHOWN = 200
# Largest number of letters among which chosen ones are searched.
_SEARCHED = 10_000


@csrf_protect
def dead_letters(request: HttpRequest) -> HttpResponseBase:
    """Show the list, one letter (``?id=``) or the question before a purge; or act on a form.

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
    # Counts help to choose a topic, and cost a request to each nsqd. One topic needs none.
    waiting = _waiting(topics) if len(topics) > 1 and request.method == "GET" else {}
    fullest = max(topics, key=lambda topic: waiting.get(topic, 0), default="")
    name = request.GET.get("topic") or fullest
    if request.GET.get("topic") and name not in topics:
        raise Http404(f"no handler has the dead_letter_topic {name}")
    alias = topics.get(name)
    may_act = bool(
        user.is_superuser
        or (alias and alias.admin_permission and user.has_perm(alias.admin_permission))
    )
    channel = request.GET.get("channel") or CHANNEL
    context = {
        **admin.site.each_context(request),
        "title": "Dead letters",
        "topics": {topic: waiting.get(topic, 0) for topic in topics},
        "topic": name,
        "channel": channel,
        "here": _query(name, channel),
        "nsqadmin": nsqadmin_of(name),
        "may_act": may_act,
    }
    if request.method == "POST":
        if not may_act or alias is None:
            raise PermissionDenied("you may look, but not act")
        return _answer_form(request, alias, name, channel, context)
    context |= {"letters": (), "waiting": 0}
    if alias is not None:
        context |= _look(alias, name, channel, request.GET.get("id", ""))
    return render(request, "gnsqsync/dead_letters.html", context)


def page_of(topic: str) -> str:
    """Return the URL of the dead letters of ``topic``; empty without such a page or handler."""
    try:
        page = reverse("nsq_dead_letters")
    except NoReverseMatch:
        return ""
    return f"{page}?{_query(topic, CHANNEL)}" if topic in _topics() else ""


def nsqadmin_of(topic: str) -> str:
    """Return the URL of nsqadmin's page of ``topic``; empty if the site has no nsqadmin."""
    try:
        return reverse("nsqadmin", kwargs={"path": f"topics/{topic}" if topic else ""})
    except NoReverseMatch:
        return ""


def _query(topic: str, channel: str) -> str:
    named = {} if channel == CHANNEL else {"channel": channel}
    return urlencode({"topic": topic, **named})


def _topics() -> dict[str, Alias]:
    """Return the dead letter topics of all handlers, each with its entry of GNSQSYNC."""
    topics: dict[str, Alias] = {}
    for handler in all_handlers():
        alias = get_alias(handler.alias)
        topic = {**alias.options, **handler.options}.get("dead_letter_topic")
        if topic and not alias.is_captured:
            topics[topic] = alias
    return dict(sorted(topics.items()))


def _waiting(topics: dict[str, Alias]) -> dict[str, int]:
    """Count the letters that wait in each topic, as far as the nsqds answer."""
    found: dict[str, int] = {}
    for alias in {alias.name: alias for alias in topics.values()}.values():
        totals, _ = topics_of(
            None, nsqd_http=alias.nsqd_http, lookupd_http=alias.lookupd, nsqd_tcp=alias.nsqd
        )
        for topic, total in totals.items():
            depths = [channel.depth for channel in total.channels.values()]
            if topic in topics and topics[topic].name == alias.name:
                found[topic] = total.depth + max(depths, default=0)
    return found


def _letters(
    alias: Alias, topic: str, channel: str, limit: int, by: str | None = None
) -> DeadLetters:
    """Return the letters of a channel. Raises Http404 if its name is not allowed."""
    try:
        return DeadLetters(topic, channel, limit=limit, by=by, **alias.dead_letters_keywords())
    except ConfigError as error:
        raise Http404(str(error)) from error


def _look(alias: Alias, topic: str, channel: str, chosen: str) -> dict[str, Any]:
    """Receive letters for the page. ``chosen``: the id of the only one to show, or empty."""
    where = Filter(ids=[chosen] if chosen else ())
    found: list[DeadLetter] = []
    with _letters(alias, topic, channel, _SEARCHED if chosen else _SHOWN) as letters:
        for letter in letters:
            if where.matches(letter):
                found.append(letter)
                if chosen:
                    break
        return {
            "letters": found,
            "problems": letters.problems,
            "waiting": letters.waiting,
            "elsewhere": [
                (name, depth, _query(topic, name)) for name, depth in letters.elsewhere.items()
            ],
            "chosen": chosen,
            "text": "\n".join(text_of(found[0])) if chosen and found else "",
        }


def _answer_form(
    request: HttpRequest, alias: Alias, topic: str, channel: str, context: dict[str, Any]
) -> HttpResponse:
    """Act on the letters that a form names, or ask before a purge."""
    # Letters that were on the page: nsqd's id of each, with the id of the dead message.
    shown = dict(pair.partition(" ")[::2] for pair in request.POST.getlist("shown"))
    # "all" means the letters on the page, without those that came since.
    ids = [*shown] if "all" in request.POST else [*dict.fromkeys(request.POST.getlist("id"))]
    verb = request.POST.get("verb")
    if verb not in ("requeue", "purge") or not ids:
        messages.error(request, "Choose letters, and what to do with them.")
    elif verb == "purge" and "sure" not in request.POST:
        context |= {
            "title": f"Purge {counted(len(ids), 'dead letter')}?",
            "ids": ids,
            "named": [shown.get(id) or id for id in ids],
        }
        return render(request, "gnsqsync/purge_dead_letters.html", context)
    else:
        _act(request, alias, topic, channel, verb, ids)
    return HttpResponseRedirect(f"{request.path}?{_query(topic, channel)}")


def _act(
    request: HttpRequest, alias: Alias, topic: str, channel: str, verb: str, ids: Sequence[str]
) -> None:
    user: Any = request.user
    left = set(ids)
    failures: dict[str, None] = {}
    done: list[str] = []

    def told(letter: DeadLetter, error: NSQError | None) -> None:
        left.discard(letter.message_id)
        if error is not None:
            failures[str(error)] = None
        else:
            done.append(letter.id)
        if not left:
            letters.stop()

    where = Filter(ids=ids)
    what = "sent back" if verb == "requeue" else "purged"
    # The entry is written first, so that nothing is done without a record.
    entry = LogEntry.objects.create(
        user_id=user.pk,
        object_repr=f"{counted(len(ids), 'dead letter')} of {topic}"[:200],
        action_flag=CHANGE if verb == "requeue" else DELETION,
        change_message=f"To be {what}: {', '.join(ids)}",
    )
    with _letters(alias, topic, channel, _SEARCHED, by=user.get_username()) as letters:
        if verb == "requeue":
            tally = letters.requeue_all(where, told=told)
        else:
            tally = letters.purge_all(where, told=told)
    entry.change_message = f"{counted(tally.done, 'letter')} {what}: {', '.join(done)}"
    entry.save(update_fields=["change_message"])
    messages.success(request, f"{counted(tally.done, 'letter')} {what}.")
    for text in [*failures, *letters.problems]:
        messages.error(request, text)
    if left and not failures:
        messages.error(request, f"{counted(len(left), 'letter')} did not come.")


urlpatterns: list[URLPattern] = [path("", dead_letters, name="nsq_dead_letters")]
