"""manage.py nsq_dead_letters, and the page of dead letters."""

from __future__ import annotations

import json
import re

import pytest

from gnsqsync import Message, NsqdHTTP, Reader, Reject, Writer
from tests.integration.conftest import address, url
from tests.integration.django.conftest import Project
from tests.support.waiting import eventually

SETTINGS = """
from settings import *
ROOT_URLCONF = "dead_urls"
GNSQSYNC = {**GNSQSYNC, "default": {
    **GNSQSYNC["default"],
    "BACKEND": "nsq",
    "ADMIN_PERMISSION": "shop.change_order",
    "OPTIONS": {"dead_letter_topic": os.environ["SHOP_TOPIC"] + ".dead"},
}}
"""
URLS = """
from django.contrib import admin
from django.urls import include, path
urlpatterns = [
    path("admin/", admin.site.urls),
    path("dead/", include("gnsqsync.django.dead_letters")),
]
"""
SCRIPT = """
import os, re
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.test.utils import setup_test_environment
setup_test_environment()
topic = os.environ["SHOP_TOPIC"] + ".dead"
import logging
lines = []

class Lines(logging.Handler):
    def emit(self, record):
        lines.append(record.getMessage())

logging.getLogger("gnsqsync.dead_letters").addHandler(Lines())

def client(name, **rights):
    client = Client(enforce_csrf_checks=True)
    user = User.objects.create_user(name, **rights)
    client.force_login(user)
    return client, user

def found(text):
    return re.findall('id=([0-9a-f]{16})"', text)

anybody = Client().get("/dead/")
print("anybody", anybody.status_code, anybody["Location"])
print("customer", client("customer")[0].get("/dead/").status_code)
staff, ann = client("ann", is_staff=True)
page = staff.get("/dead/")
text = page.content.decode()
print("staff", page.status_code, len(found(text)), "Send back" in text)
print("zone", len(re.findall(r"<td[^>]*>[-0-9]{10} [:0-9]{8} [A-Z]{3,4}</td>", text)))
print("escaped", "&lt;b&gt;" in text, "<b>no" in text)
print("staff acts", staff.post("/dead/?topic=" + topic, {"verb": "purge"}).status_code)
print("unknown", staff.get("/dead/?topic=orders").status_code)
one = staff.get(f"/dead/?topic={topic}&id={found(text)[0]}").content.decode()
print("one", "traceback" in one, "raise Reject" in one)
ann.user_permissions.add(Permission.objects.get(codename="change_order"))
text = staff.get("/dead/").content.decode()
token = re.search('name="csrfmiddlewaretoken" value="([^"]+)"', text)[1]
ids = found(text)
form = {"csrfmiddlewaretoken": token, "verb": "requeue", "id": ids[:2]}
print("back", staff.post("/dead/?topic=" + topic, form).status_code)
text = staff.get("/dead/").content.decode()
print("said", "2 letters sent back." in text, len(found(text)))
from django.contrib.admin.models import LogEntry
from gnsqsync.django import dead_letters as page
alias = page._topics()[topic]
page._topics = lambda: {"a.first.dead": alias, topic: alias}
text = staff.get("/dead/").content.decode()
print("opens", f"<h2>{topic}</h2>" in text, "a.first.dead</a> (0)" in text, "</a> (2)" in text)
print("all", 'name="all"' in text, text.count('name="shown"'))
gone = found(text)[0]
form = {"csrfmiddlewaretoken": token, "verb": "purge", "id": [gone]}
asked = staff.post("/dead/?topic=" + topic, form).content.decode()
print("asked", "Purge for ever" in asked, "Keep them" in asked, LogEntry.objects.count())
form["sure"] = "1"
print("purged", staff.post("/dead/?topic=" + topic, form, follow=True).status_code)
print("no token", staff.post("/dead/?topic=" + topic, {"verb": "purge", "id": "x"}).status_code)
entry = LogEntry.objects.latest("pk")
is_named = entry.object_repr == "1 dead letter of " + topic
print("entry", entry.user.username, entry.is_deletion(), is_named)
print("message", re.sub("[0-9a-f]{16}", "ID", entry.change_message))
text = staff.get("/dead/").content.decode()
print("left", len(found(text)))
form = {"verb": "purge", "sure": "1", "all": "1", "shown": found(text)}
form["csrfmiddlewaretoken"] = token
said = staff.post("/dead/?topic=" + topic, form, follow=True).content.decode()
print("all purged", "1 letter purged." in said)
print("told", [str(line) for line in lines if gone not in line and "purged by ann" in line] != [])
index = staff.get("/admin/").content.decode()
link = re.search('href="(/admin/gnsqsync/deadletters/)"', index)
has_nsqadmin = "/admin/gnsqsync/nsqadmin/" in index
print("admin", link is not None and staff.get(link[1])["Location"], has_nsqadmin)
"""


@pytest.fixture
def dead(project: Project) -> str:
    """The topic of four dead letters."""
    where = address(project.nsqd)
    topic = f"{project.topic}.dead"
    project.make_channel("shop")

    def handle(message: Message) -> None:
        raise Reject("<b>no price</b>")

    with Writer(where, headers=True) as writer:
        for number in range(4):
            writer.publish(project.topic, b"%d" % number, headers={"number": str(number)})
    reader = Reader(
        project.topic,
        "shop",
        handle,
        nsqd_tcp_addresses=where,
        headers=True,
        dead_letter_topic=topic,
        backoff=False,
    )
    with reader:
        eventually(lambda: reader.stats().gave_up == 4)
    return topic


def depth(project: Project, topic: str) -> int:
    with NsqdHTTP(url(project.nsqd)) as http:
        (found,) = http.stats(topic).topics
    return found.depth + sum(channel.depth for channel in found.channels)


def test_the_command(project: Project, dead: str) -> None:
    output = project.manage("nsq_dead_letters", "list", dead, "--json").end()
    found = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert {letter["reason"] for letter in found} == {"<b>no price</b>"}
    assert "4 letters listed" in output
    shown = project.manage("nsq_dead_letters", "show", dead, found[0]["id"]).end()
    assert "raise Reject" in shown
    tried = project.manage("nsq_dead_letters", "requeue", dead, "--dry-run").end()
    assert "4 letters would be requeued" in tried and depth(project, dead) == 4
    words = ("--id", found[0]["id"], "--id", found[1]["id"])
    assert "2 letters requeued" in project.manage("nsq_dead_letters", "requeue", dead, *words).end()
    assert project.channel("shop").depth == 2
    refused = project.manage("nsq_dead_letters", "purge", dead).end(1)
    assert "give --yes" in refused
    assert "2 letters purged" in project.manage("nsq_dead_letters", "purge", dead, "--yes").end()
    assert depth(project, dead) == 0
    wrong = project.manage("nsq_dead_letters", "list", "nothing.dead").end(1)
    assert "no such topic 'nothing.dead'" in wrong
    memory = project.manage("nsq_dead_letters", "list", dead, "--alias", "other").end(1)
    assert "reaches no nsqd" in memory


def test_the_page(project: Project, dead: str) -> None:
    for name, text in (("dead_settings", SETTINGS), ("dead_urls", URLS)):
        (project.folder / f"{name}.py").write_text(text)
    project.migrate()
    output = project.shell(SCRIPT, DJANGO_SETTINGS_MODULE="dead_settings")
    lines = [
        line for line in output.splitlines() if not re.match("[A-Z]+ |Forbidden|Not Found", line)
    ]
    assert lines == [
        "anybody 302 /admin/login/?next=/dead/",
        "customer 403",
        "staff 200 4 False",
        "zone 4",
        "escaped True False",
        "staff acts 403",
        "unknown 404",
        "one True True",
        "back 302",
        "said True 2",
        "opens True True True",
        "all True 2",
        "asked True True 1",
        "purged 200",
        "no token 403",
        "entry ann True True",
        "message 1 letter purged: ID",
        "left 1",
        "all purged True",
        "told True",
        "admin /dead/ False",
    ]
    assert project.channel("shop").depth == 2 and depth(project, dead) == 0
