"""SQLite: a connection for each request, and for each message that is handled."""

from __future__ import annotations

import os
import secrets
import sqlite3

import click
from flask import Flask, current_app, g

# Letters and digits that nobody takes for each other.
ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"
CODE_LENGTH = 7


def init_app(app: Flask) -> None:
    # After a request, and after a message: each has an application context of its own.
    app.teardown_appcontext(close)
    app.cli.add_command(init_db)


def connection() -> sqlite3.Connection:
    if "connection" not in g:
        # The site and the consumer write by turns.
        g.connection = sqlite3.connect(current_app.config["DATABASE"], timeout=20)
        g.connection.row_factory = sqlite3.Row
    return g.connection


def close(error: BaseException | None) -> None:
    found = g.pop("connection", None)
    if found is not None:
        found.close()


def make_tables() -> None:
    folder = os.path.dirname(current_app.config["DATABASE"])
    os.makedirs(folder or ".", exist_ok=True)
    with current_app.open_resource("schema.sql", "r") as script:
        connection().executescript(script.read())


@click.command("init-db")
def init_db() -> None:
    """Make the tables, where they are missing."""
    make_tables()


def add_link(url: str) -> str:
    """The code of a new link."""
    code = "".join(secrets.choice(ALPHABET) for _ in range(CODE_LENGTH))
    with connection() as db:
        db.execute("INSERT INTO link (code, url) VALUES (?, ?)", (code, url))
    return code


def url_of(code: str) -> str | None:
    row = connection().execute("SELECT url FROM link WHERE code = ?", (code,)).fetchone()
    return None if row is None else row["url"]


def add_click(id: str, code: str) -> None:
    """Count it, if it has not been counted before, and if there is such a link."""
    with connection() as db:
        db.execute(
            "INSERT OR IGNORE INTO click (id, code) SELECT ?, code FROM link WHERE code = ?",
            (id, code),
        )


def clicks_of(code: str) -> int:
    row = connection().execute("SELECT count(*) FROM click WHERE code = ?", (code,)).fetchone()
    return int(row[0])


def newest_links(limit: int = 50) -> list[sqlite3.Row]:
    return (
        connection()
        .execute(
            "SELECT code, url, (SELECT count(*) FROM click WHERE click.code = link.code) AS clicks"
            " FROM link ORDER BY link.rowid DESC LIMIT ?",
            (limit,),
        )
        .fetchall()
    )
