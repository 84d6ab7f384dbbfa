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
os.environ["DJANGO_SETTINGS_MODULE"] = "dead_settings"
import django
django.setup()
from django.contrib.auth.models import Permission, User
from django.test import Client
from django.test.utils import setup_test_environment
setup_test_environment()
topic = os.environ["SHOP_TOPIC"] + ".dead"

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
form = {"csrfmiddlewaretoken": token, "verb": "purge", "id": found(text)[:1]}
print("purged", staff.post("/dead/?topic=" + topic, form, follow=True).status_code)
print("no token", staff.post("/dead/?topic=" + topic, {"verb": "purge", "id": "x"}).status_code)
text = staff.get("/dead/").content.decode()
print("left", len(found(text)))
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
    for name, text in (("script", SCRIPT), ("dead_settings", SETTINGS), ("dead_urls", URLS)):
        (project.folder / f"{name}.py").write_text(text)
    project.migrate()
    output = project.run("python", "script.py").end()
    lines = [
        line for line in output.splitlines() if not re.match("[A-Z]+ |Forbidden|Not Found", line)
    ]
    assert lines == [
        "anybody 302 /admin/login/?next=/dead/",
        "customer 403",
        "staff 200 4 False",
        "escaped True False",
        "staff acts 403",
        "unknown 404",
        "one True True",
        "back 302",
        "said True 2",
        "purged 200",
        "no token 403",
        "left 1",
    ]
    assert project.channel("shop").depth == 2 and depth(project, dead) == 1
