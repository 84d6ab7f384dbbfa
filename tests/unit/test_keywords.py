"""Keywords written out as TypedDicts are those of the classes and functions that take them."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable
from dataclasses import MISSING, Field, fields
from typing import Any

from gnsqsync import ConnectionOptionKeywords, ConnectionOptions, Reader, ReaderOptionKeywords
from gnsqsync.embedded import Nsqd, Nsqlookupd
from gnsqsync.embedded.options import LookupdFlags, LookupdOptions, NsqdFlags, NsqdOptions
from gnsqsync.http.transport import HTTPClient, HTTPKeywords
from gnsqsync.reader.options import ReaderOptions


def said(keywords: Any) -> dict[str, str]:
    """Name -> type as it is written, of the keywords that are its own."""
    return {name: kind.__forward_arg__ for name, kind in keywords.__annotations__.items()}


def keyword_only(function: Callable[..., Any]) -> dict[str, str]:
    return {
        name: parameter.annotation
        for name, parameter in inspect.signature(function).parameters.items()
        if parameter.kind is parameter.KEYWORD_ONLY
    }


def of_fields(owner: Any) -> dict[str, str]:
    return {field.name: str(field.type) for field in fields(owner)}


def told_defaults(keywords: type) -> dict[str, str]:
    """Name -> the text below it, of a TypedDict."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(keywords))).body
    assert isinstance(body, ast.ClassDef)
    told = {}
    for statement, text in zip(body.body, body.body[1:], strict=False):
        if isinstance(statement, ast.AnnAssign):
            assert isinstance(statement.target, ast.Name)
            assert isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant)
            told[statement.target.id] = str(text.value.value)
    return told


def shown_default(field: Field[Any]) -> str:
    if field.default is MISSING:
        return "Default: the host name"
    if field.name == "user_agent":
        return "Default: 'gnsqsync/<version>'"
    return f"Default: {field.default!r}"


def test_connection_options() -> None:
    assert list(said(ConnectionOptionKeywords).items()) == list(
        of_fields(ConnectionOptions).items()
    )
    assert ConnectionOptionKeywords.__total__ is False


def test_each_connection_option_tells_its_default() -> None:
    told = told_defaults(ConnectionOptionKeywords)
    for field in fields(ConnectionOptions):
        assert shown_default(field) in told[field.name]


def test_reader_options() -> None:
    of_reader = keyword_only(Reader)
    del of_reader["nsqd_tcp_addresses"], of_reader["lookupd_http_addresses"]
    own = said(ReaderOptionKeywords)
    assert own == {**said(ConnectionOptionKeywords), **of_reader}
    assert of_fields(ReaderOptions).items() <= own.items()
    assert ReaderOptionKeywords.__required_keys__ == frozenset()


def test_http_options() -> None:
    of_client = keyword_only(HTTPClient)
    del of_client["timeout"]
    assert said(HTTPKeywords) == of_client


def test_flags_of_the_embedded_servers() -> None:
    for keywords, options, server in (
        (NsqdFlags, NsqdOptions, Nsqd),
        (LookupdFlags, LookupdOptions, Nsqlookupd),
    ):
        its_own = {*keyword_only(server), "lookupd_tcp_address"}
        of_options = {
            name: options.__annotations__[name] for name in options.known if name not in its_own
        }
        told = said(keywords)
        assert told.keys() == of_options.keys()
        for name, kind in of_options.items():
            # Words are told; what may be repeated is any sequence.
            if not told[name].startswith("Literal["):
                assert told[name] == kind.replace("tuple[", "Sequence[").replace(", ...]", "]")
