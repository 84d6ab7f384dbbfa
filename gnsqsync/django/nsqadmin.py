"""nsqadmin below a path of a Django site: ``path("nsq/", include("gnsqsync.django.nsqadmin"))``.

Staff may look. Superusers may act, and so may staff with the permission that ``ADMIN_PERMISSION``
in ``GNSQSYNC["default"]`` names. nsqadmin asks the nsqlookupds of ``LOOKUPD``, or else the nsqds of
``NSQD_HTTP``, or else the ports after those of ``NSQD``. Each action leaves an entry in the log of
Django's admin, if that is installed.

Needs the extra ``admin``.
"""

from __future__ import annotations

from functools import partial
from typing import Any
from urllib.parse import urlsplit

from django.apps import apps
from django.contrib.auth.views import redirect_to_login
from django.core.exceptions import ImproperlyConfigured, PermissionDenied
from django.core.signals import setting_changed
from django.http import HttpRequest, HttpResponse, HttpResponseBase, StreamingHttpResponse
from django.urls import URLPattern, re_path
from django.views.decorators.csrf import csrf_exempt

from gnsqsync.addresses import http_urls
from gnsqsync.admin.access import LETTERS, MAY_ACT, RECORD, USER
from gnsqsync.admin.app import Admin, create_app
from gnsqsync.cluster.servers import next_ports
from gnsqsync.django.config import DEFAULT, Alias, get_alias
from gnsqsync.django.login import login_url
from gnsqsync.options import https_options

__all__ = ["nsqadmin", "urlpatterns"]

# The Admin of this process, once it is made. dict.setdefault is atomic, so there is no lock.
_admins: dict[str, Admin] = {}


# Django's CSRF check is off: forms have nsqadmin's own token, and its API checks the origin.
@csrf_exempt
def nsqadmin(request: HttpRequest, path: str) -> HttpResponseBase:
    """Answer a request for a page of nsqadmin or for its API.

    Args:
        request: The request.
        path: The part of the URL after the prefix of the include.

    Raises:
        PermissionDenied: The user is no staff.
        ImproperlyConfigured: The site has no users, or the settings have no address.
    """
    user: Any = getattr(request, "user", None)
    if user is None:
        raise ImproperlyConfigured(
            "gnsqsync.django.nsqadmin needs django.contrib.auth and its AuthenticationMiddleware"
        )
    if not user.is_authenticated and request.method == "GET":
        return redirect_to_login(request.get_full_path(), login_url())
    if not (user.is_active and user.is_staff):
        raise PermissionDenied("nsqadmin is for staff")
    permission = get_alias(DEFAULT).admin_permission
    prefix = request.path[: len(request.path) - len(path)].rstrip("/")
    environ = {
        **request.META,
        "REQUEST_METHOD": request.method,
        "SCRIPT_NAME": prefix.encode().decode("latin-1"),
        "PATH_INFO": f"/{path}".encode().decode("latin-1"),
        "wsgi.input": request,
        MAY_ACT: user.is_superuser or bool(permission and user.has_perm(permission)),
        USER: user.get_username(),
        LETTERS: _letters_page,
        RECORD: partial(_record, user.pk),
    }
    head: list[Any] = []
    body = _of_this_process()(environ, lambda *given: head.extend(given))
    status, _, reason = head[0].partition(" ")
    headers = dict(head[1])
    cookie = headers.pop("Set-Cookie", "")
    response: HttpResponseBase
    if isinstance(body, list):
        response = HttpResponse(b"".join(body), None, int(status), reason, headers=headers)
    elif hasattr(request, "scope"):
        # Under ASGI Django collects a body before it sends it, and this body has no end.
        body.close()  # type: ignore[attr-defined]
        response = HttpResponse("Watching a topic needs WSGI.", "text/plain", 501)
    else:
        response = StreamingHttpResponse(body, None, int(status), reason, headers=headers)
    # The cookie goes into Django's own list, where middleware looks for cookies.
    response.cookies.load(cookie)
    return response


def _letters_page(topic: str) -> str:
    # The page needs Django's admin. nsqadmin itself does not.
    if not apps.is_installed("django.contrib.admin"):
        return ""
    from gnsqsync.django.dead_letters import page_of

    return page_of(topic)


def _record(user: object, verb: str, what: str) -> None:
    """Write an entry into the log of Django's admin, which knows the user by the primary key."""
    if not apps.is_installed("django.contrib.admin"):
        return
    from django.contrib.admin.models import ADDITION, CHANGE, DELETION, LogEntry

    flags = {"create": ADDITION, "publish": ADDITION}
    flags |= dict.fromkeys(("delete", "empty", "tombstone"), DELETION)
    LogEntry.objects.create(
        user_id=user,
        object_repr=what[:200],
        action_flag=flags.get(verb, CHANGE),
        change_message=f"nsqadmin: {verb}",
    )


def _of_this_process() -> Admin:
    admin = _admins.get(DEFAULT)
    # If two threads make an Admin, one is dropped. It has started nothing.
    return admin or _admins.setdefault(DEFAULT, _new(get_alias(DEFAULT)))


def _new(alias: Alias) -> Admin:
    tls = https_options(alias.options)
    return create_app(
        None,
        http_client_tls_root_ca_file=tls.get("tls_ca_file") or "",
        http_client_tls_cert=tls.get("tls_cert_file") or "",
        # The settings name a file with certificate and key once; nsqadmin wants it named twice.
        http_client_tls_key=tls.get("tls_key_file") or tls.get("tls_cert_file") or "",
        http_client_tls_insecure_skip_verify=not tls.get("tls_verify", True),
        **_addresses(alias),
    )


def _addresses(alias: Alias) -> dict[str, list[str]]:
    if alias.lookupd:
        return {"lookupd_http_address": [_host_and_port(url) for url in http_urls(alias.lookupd)]}
    nsqds = alias.nsqd_http or next_ports(alias.nsqd)
    return {"nsqd_http_address": [_host_and_port(url) for url in http_urls(nsqds, 4151)]}


def _host_and_port(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.path.strip("/") or parts.query or "@" in parts.netloc:
        raise ImproperlyConfigured(
            f"GNSQSYNC[{DEFAULT!r}]: nsqadmin asks its servers by host:port, without https, a path"
            f" or a password; the address at {parts.hostname} has more. Serve it as"
            " `gnsqsync nsqadmin`, or with create_app()."
        )
    return parts.netloc


def _on_setting_changed(*, setting: str, **kwargs: object) -> None:
    # A test changes settings by override_settings().
    if setting == "GNSQSYNC" and DEFAULT in _admins:
        _admins.pop(DEFAULT).close()


setting_changed.connect(_on_setting_changed)

urlpatterns: list[URLPattern] = [re_path(r"^(?P<path>.*)$", nsqadmin, name="nsqadmin")]
