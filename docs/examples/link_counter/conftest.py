"""Beside the package, so that tests can import it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from flask import Flask
from flask.testing import FlaskClient
from links import create_app, database


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Flask]:
    app = create_app({"TESTING": True, "DATABASE": str(tmp_path / "links.sqlite3")})
    with app.app_context():
        database.make_tables()
        yield app


@pytest.fixture
def client(app: Flask) -> FlaskClient:
    return app.test_client()
