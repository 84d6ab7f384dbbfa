"""The pages, and the short links themselves."""

from __future__ import annotations

import uuid
from typing import Any
from urllib.parse import urlsplit

from flask import Blueprint, abort, current_app, json, redirect, render_template, request, url_for

from gnsqsync.errors import PublishError
from links import database
from links.extensions import nsq

pages = Blueprint("pages", __name__)

LONGEST = 2000


@pages.get("/")
def index() -> str:
    return render_template("index.html", links=database.newest_links())


@pages.post("/")
def make() -> Any:
    url = request.form.get("url", "").strip()
    problem = what_is_wrong_with(url)
    if problem:
        page = render_template(
            "index.html", links=database.newest_links(), url=url, problem=problem
        )
        return page, 422
    return redirect(url_for("pages.show", code=database.add_link(url)), 303)


@pages.get("/links/<code>")
def show(code: str) -> str:
    url = database.url_of(code) or abort(404)
    return render_template("link.html", code=code, url=url, clicks=database.clicks_of(code))


@pages.get("/<code>")
def follow(code: str) -> Any:
    url = database.url_of(code) or abort(404)
    click = {"id": uuid.uuid4().hex, "code": code}
    try:
        nsq.publish("clicks", json.dumps(click), timeout=1.0)
    except PublishError as error:
        # Who follows a link is to arrive. A click that is not counted is the lesser evil.
        current_app.logger.warning("a click on %s is not counted: %s", code, error)
    # Not a permanent one: browsers would not come here again, and nobody would count.
    return redirect(url, 302)


def not_found(error: Exception) -> Any:
    return render_template("404.html"), 404


def what_is_wrong_with(url: str) -> str:
    """A sentence for who has typed it, or nothing."""
    if not url:
        return "Give the address that the link is to lead to."
    if len(url) > LONGEST:
        return f"This address is too long: at most {LONGEST} characters."
    try:
        parts = urlsplit(url)
        host, _ = parts.hostname, parts.port
    except ValueError:
        return "This is not an address of a page."
    if parts.scheme not in ("http", "https"):
        return "The address must begin with http:// or https://."
    if not host or not url.isprintable() or " " in url:
        return "This is not an address of a page."
    return ""
