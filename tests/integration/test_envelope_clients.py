"""The pieces of the page on the envelope that read it in other languages."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gnsqsync.envelope import MAGIC, decode, encode
from tests.support.needs import missing
from tests.support.texts import DOCS

FOLDER = DOCS / "examples" / "envelope"


def framed(block: bytes, body: bytes = b"x") -> bytes:
    return MAGIC + len(block).to_bytes(2) + block + body


CASES = [
    encode({}, b"{}"),
    encode({"id": "7", "name": "Zoë ☃"}, b"\x00\xff body"),
    encode({"bom": "\ufeff"}, b"x"),
    encode({"n" * 255: "v" * 60_000}, b"x"),
    encode({f"h{number}": "" for number in range(64)}, b"x"),
    b"{}",
    b"\xff\xffNH\x02\x00\x00x",
    MAGIC,
    framed(b"a\0b", b""),
    *map(framed, [b"a", b"\0b", b"a\0b\0", b"a\0b\0a\0c", b"a\0\xff", b"a\0b" + b"\0c\0d" * 64]),
    framed(b"\0".join(b"%d\0v" % number for number in range(65))),
]
GO = """
package main

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"test/envelope"
)

func main() {
	var cases []string
	json.NewDecoder(os.Stdin).Decode(&cases)
	found := [][]any{}
	for _, text := range cases {
		data, _ := hex.DecodeString(text)
		headers, body := envelope.Open(data)
		if headers == nil {
			headers = map[string]string{}
		}
		found = append(found, []any{headers, hex.EncodeToString(body)})
	}
	json.NewEncoder(os.Stdout).Encode(found)
}
"""
NODE = """
const { open } = require(process.argv[1])
const cases = JSON.parse(require('fs').readFileSync(0))
console.log(JSON.stringify(cases.map((text) => {
  const [headers, body] = open(Buffer.from(text, 'hex'))
  return [headers, body.toString('hex')]
})))
"""


def expected() -> list[Any]:
    found = []
    for data in CASES:
        headers, body = decode(data) or ({}, data)
        found.append([headers, body.hex()])
    return found


def ask(command: list[str], cwd: Path) -> Any:
    done = subprocess.run(
        command,
        cwd=cwd,
        input=json.dumps([data.hex() for data in CASES]),
        capture_output=True,
        text=True,
        check=False,
        timeout=110,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def need(program: str) -> str:
    path = shutil.which(program)
    if path is None:
        missing(FileNotFoundError(f"{program} is not on PATH"))
        raise AssertionError
    return path


def test_in_go(tmp_path: Path) -> None:
    go = need("go")
    (tmp_path / "go.mod").write_text("module test\n\ngo 1.18\n")
    (tmp_path / "main.go").write_text(GO)
    (tmp_path / "envelope").mkdir()
    shutil.copy(FOLDER / "envelope.go", tmp_path / "envelope")
    assert ask([go, "run", "."], tmp_path) == expected()


def test_in_javascript(tmp_path: Path) -> None:
    if shutil.which("node") is None:
        pytest.skip("no node on PATH")
    assert ask(["node", "-e", NODE, str(FOLDER / "envelope.js")], tmp_path) == expected()


def test_in_python() -> None:
    names: dict[str, Any] = {}
    exec((FOLDER / "envelope.py").read_text(encoding="utf-8"), names)
    assert [[h, b.hex()] for h, b in map(names["open_envelope"], CASES)] == expected()
