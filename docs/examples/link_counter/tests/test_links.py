"""Without nsqd and browser: under TESTING messages stay in memory."""

from __future__ import annotations

from unittest import mock

import pytest
from flask import Flask
from flask.testing import FlaskClient
from links import database
from links.extensions import nsq
from links.handlers import count

from gnsqsync.errors import NotSent
from gnsqsync.flask import CapturedMessage

PAGE = "https://docs.example/a?b=c#d"


@pytest.fixture
def code(client: FlaskClient) -> str:
    """Of a link that a form has made."""
    answer = client.post("/", data={"url": f"  {PAGE} "})
    assert answer.status_code == 303
    return answer.location.removeprefix("/links/")


def test_a_link_leads_to_its_page_and_its_click_is_published(
    client: FlaskClient, code: str
) -> None:
    answer = client.get(f"/{code}")
    assert (answer.status_code, answer.location) == (302, PAGE)
    (click,) = nsq.writer.messages
    assert (click.topic, click.json()["code"]) == ("clicks", code)


def test_each_click_counts_once_however_often_its_message_comes(
    client: FlaskClient, code: str
) -> None:
    for _ in range(3):
        client.get(f"/{code}")
    for message in [*nsq.writer.messages, *nsq.writer.messages]:
        count(message)
    assert database.clicks_of(code) == 3
    assert '<strong id="clicks">3</strong> clicks' in client.get(f"/links/{code}").text
    assert '<td class="number">3</td>' in client.get("/").text


def test_who_follows_a_link_arrives_without_nsqd_too(
    client: FlaskClient, code: str, caplog: pytest.LogCaptureFixture
) -> None:
    with mock.patch.object(nsq.writer, "publish", side_effect=NotSent("no nsqd")):
        assert client.get(f"/{code}").location == PAGE
    assert f"a click on {code} is not counted: no nsqd" in caplog.text


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("", "Give the address"),
        ("docs.example", "must begin with http:// or https://"),
        ("javascript:alert(1)", "must begin with http:// or https://"),
        ("https://", "not an address"),
        ("https://[::1", "not an address"),
        ("https://docs.example:x/", "not an address"),
        ("https://docs.example/a b", "not an address"),
        ("https://docs.example/" + 2000 * "a", "too long"),
    ],
)
def test_what_is_no_address_is_refused(client: FlaskClient, url: str, sentence: str) -> None:
    answer = client.post("/", data={"url": url})
    assert answer.status_code == 422
    assert sentence in answer.text
    assert database.newest_links() == []


def test_an_address_is_shown_as_it_is_written(client: FlaskClient) -> None:
    page = client.post("/", data={"url": "https://docs.example/<i>"}, follow_redirects=True)
    assert "https://docs.example/&lt;i&gt;" in page.text


@pytest.mark.parametrize("path", ["/nothing", "/links/nothing", "/a/b"])
def test_an_unknown_link(client: FlaskClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 404
    assert "There is no such link" in answer.text
    assert nsq.writer.messages == []


def test_a_click_on_a_link_that_is_gone_is_not_counted_in_vain(app: Flask) -> None:
    # The message is done with: it could never be counted, however often it came.
    count(CapturedMessage("clicks", b'{"id": "1", "code": "gone"}'))
    assert database.clicks_of("gone") == 0
