"""Short links that count their clicks: a site and a consumer."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from flask import Flask

from links import database, handlers, views
from links.extensions import nsq


def create_app(config: Mapping[str, Any] | None = None) -> Flask:
    app = Flask(__name__, instance_relative_config=True)
    app.config.from_mapping(DATABASE=os.path.join(app.instance_path, "links.sqlite3"))
    # FLASK_DATABASE, FLASK_NSQ_NSQD_ADDRESSES and so on.
    app.config.from_prefixed_env()
    app.config.from_mapping(config)
    nsq.init_app(app)
    database.init_app(app)
    app.register_blueprint(views.pages)
    app.register_error_handler(404, views.not_found)
    return app


# Nobody would know the handlers if nobody imported them.
__all__ = ["create_app", "handlers"]
