"""nsqadmin below a path of a Django project: who may look, who may act, and what is served."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from gnsqsync import NsqdHTTP
from tests.integration.conftest import url
from tests.integration.django.conftest import Project
from tests.support.servers import Server

pytestmark = pytest.mark.integrations

SETTINGS = """
from settings import *
ROOT_URLCONF = "admin_urls"
GNSQSYNC = {"default": {**GNSQSYNC["default"], "ADMIN_PERMISSION": "shop.change_order"}}
"""
URLS = """
from django.contrib import admin
from django.urls import include, path
urlpatterns = [
    path("admin/", admin.site.urls),
    path("nsq/", include("gnsqsync.django.nsqadmin")),
]
"""
# Runs in the project: Django's test client knows its users, and no browser is needed.
SCRIPT = """
import asyncio, os, re, threading, warnings
from urllib.parse import urlencode
# Django leaves open the connection of a thread that serves a request of the asynchronous client.
warnings.filterwarnings("ignore", "unclosed database", ResourceWarning)
from django.contrib.auth.models import Permission, User
from django.test import AsyncClient, Client
from django.test.utils import setup_test_environment
setup_test_environment()

def client(name, **rights):
    user = User.objects.create_user(name, password="x", **rights)
    found = Client()
    found.force_login(user)
    return found, user

topic = os.environ["SHOP_TOPIC"]

def pause(who):
    path = f"/nsq/api/topics/{topic}"
    return who.post(path, '{"action":"pause"}', "application/json").status_code

anybody = Client()
answer = anybody.get("/nsq/")
print("anybody", answer.status_code, answer["Location"])
print("anybody posts", anybody.post("/nsq/do").status_code)
customer, _ = client("customer")
print("customer", customer.get("/nsq/").status_code)
staff, ann = client("ann", is_staff=True)
page = staff.get("/nsq/topics/" + topic)
text = page.content.decode()
print("staff", page.status_code, "Read only" in text, page["Content-Security-Policy"][:18])
links = re.findall('href="([^"#][^"]*)"', text)
print("links", all(link.startswith("/nsq/") for link in links))
print("staff acts", pause(staff))
print("staff config", staff.get("/nsq/config/log_level").status_code)
permission = Permission.objects.get(codename="change_order")
ann.user_permissions.add(permission)
print("permitted", pause(staff))
root, bob = client("root", is_staff=True, is_superuser=True)
confirm = root.get(f"/nsq/confirm?verb=unpause&topic={topic}").content.decode()
token = re.search('name="token" value="([0-9a-f]{32})"', confirm)[1]
form = urlencode({"token": token, "verb": "unpause", "topic": topic})
sent = ("/nsq/do", form, "application/x-www-form-urlencoded")
print("root", root.post(*sent).status_code)
empty = {"token": token, "verb": "empty", "topic": topic, "channel": "archive"}
print("empty", root.post("/nsq/do", urlencode(empty), sent[2]).status_code)
from django.contrib.admin.models import LogEntry
for entry in LogEntry.objects.order_by("pk"):
    what = entry.object_repr.replace(topic, "T")
    print("entry", entry.user, entry.get_action_flag_display(), what, entry.change_message)
print("foreign", root.post(*sent, HTTP_ORIGIN="http://evil.example").status_code)
print("asset", b"".join(root.get("/nsq/static/main.js")).startswith(b"//"))
# A server with threads; the client of Django's tests says that it has one.
watch = root.get(f"/nsq/watch/{topic}/events", **{"wsgi.multithread": True})
print("watch", watch.streaming, watch["Content-Type"])
print(next(iter(watch.streaming_content)).decode().splitlines()[0])
watch.close()
slow = AsyncClient()
slow.force_login(bob)
print("asgi", asyncio.run(slow.get("/nsq/nodes")).status_code)
print("asgi watch", asyncio.run(slow.get(f"/nsq/watch/{topic}/events")).status_code)
print("not found", root.get("/nsq/nothing").status_code)
from django.test import override_settings
from django.conf import settings
with override_settings(GNSQSYNC={**settings.GNSQSYNC}):
    pass
print("left", [t.name for t in threading.enumerate() if t.name.startswith("gnsqsync")])
"""


@pytest.fixture
def topic(project: Project, nsqd: Server) -> Iterator[NsqdHTTP]:
    for name, text in (("admin_settings", SETTINGS), ("admin_urls", URLS)):
        (project.folder / f"{name}.py").write_text(text)
    with NsqdHTTP(url(nsqd)) as http:
        http.create_topic(project.topic)
        http.create_channel(project.topic, "archive")
        yield http
        http.delete_topic(project.topic)


def test_staff_looks_and_who_has_the_permission_acts(project: Project, topic: NsqdHTTP) -> None:
    project.migrate()
    output = project.shell(SCRIPT, DJANGO_SETTINGS_MODULE="admin_settings")
    # The log of the project is among them.
    lines = [line for line in output.splitlines() if not re.match("[A-Z]+ ", line)]
    assert f"INFO gnsqsync.admin: unpause of topic {project.topic} by 'root'" in output
    assert lines == [
        "anybody 302 /admin/login/?next=/nsq/",
        "anybody posts 403",
        "customer 403",
        "staff 200 True default-src 'none'",
        "links True",
        "staff acts 403",
        "staff config 403",
        "permitted 200",
        "root 200",
        "empty 200",
        "entry ann Change topic T nsqadmin: pause",
        "entry root Change topic T nsqadmin: unpause",
        "entry root Deletion channel archive of T nsqadmin: empty",
        "foreign 403",
        "asset True",
        "watch True text/event-stream; charset=utf-8",
        "event: began",
        "asgi 200",
        "asgi watch 501",
        "not found 404",
        "left []",
    ]
    assert not topic.stats(project.topic).topics[0].paused
