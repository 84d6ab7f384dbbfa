"""uv in the place of pip: which settings it is given, and when pip does the work."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.support import installs
from tests.support.installs import OnlyPip, by_uv, settings, variables

PYTHON = sys.executable
LISTED = """\
:env:.default-timeout='180'
global.cert='/etc/ca.pem'
global.default-timeout='15'
global.index-url='https://one.example/simple'
install.index-url='https://two.example/it\\'s/simple'
list.format='columns'
"""


def test_settings_that_hold_for_install() -> None:
    """The environment goes before the command's own section, and that before the general one."""
    assert settings(LISTED) == {
        "default-timeout": "180",
        "cert": "/etc/ca.pem",
        "index-url": "https://two.example/it's/simple",
    }


def test_settings_become_variables_of_uv() -> None:
    assert variables(settings(LISTED), {}) == {
        "UV_HTTP_TIMEOUT": "180",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "UV_DEFAULT_INDEX": "https://two.example/it's/simple",
    }


def test_output_of_pip_is_of_no_matter() -> None:
    assert variables({"disable-pip-version-check": "1", "quiet": "1"}, {}) == {}


@pytest.mark.parametrize("key", ["extra-index-url", "no-binary", "proxy", "trusted-host"])
def test_a_setting_without_a_variable_leaves_the_work_to_pip(key: str) -> None:
    with pytest.raises(OnlyPip, match=f"pip's setting {key}"):
        variables({"quiet": "1", key: "x"}, {})


def test_variables_of_the_user_stay() -> None:
    pip = {"index-url": "https://one.example/simple"}
    assert variables(pip, {"UV_DEFAULT_INDEX": "https://mine.example"}) == {}


def test_the_certificates_of_requests() -> None:
    environ = {"CURL_CA_BUNDLE": "/curl.pem", "REQUESTS_CA_BUNDLE": "/requests.pem"}
    assert variables({}, environ) == {"SSL_CERT_FILE": "/requests.pem"}
    assert variables({"cert": "/pip.pem"}, environ) == {"SSL_CERT_FILE": "/pip.pem"}
    assert variables({}, {**environ, "SSL_CERT_FILE": "/mine.pem"}) == {}


def test_places_of_wheels(tmp_path: Path) -> None:
    """Places of uv come first; folders that do not exist are left out, as pip does."""
    pip = {"find-links": f"{tmp_path} {tmp_path}/gone\nhttps://wheels.example/x"}
    given = f"{tmp_path},https://wheels.example/x"
    assert variables(pip, {}) == {"UV_FIND_LINKS": given}
    assert variables(pip, {"UV_FIND_LINKS": "/own"}) == {"UV_FIND_LINKS": f"/own,{given}"}
    assert variables({"find-links": f"{tmp_path}/gone"}, {"UV_FIND_LINKS": "/own"}) == {}


def program(path: Path, code: str) -> Path:
    path.write_text(f"#!{PYTHON}\nimport os, sys\n{code}\n")
    path.chmod(0o755)
    return path


@pytest.fixture
def beside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of programs: this Python, whose pip has the settings of LISTED."""
    listed = f"print({LISTED!r}) if 'config' in sys.argv else (print(sys.argv[1:]), sys.exit(3))"
    python = program(tmp_path / "python", listed)
    monkeypatch.setattr(installs.sys, "executable", str(python))
    for name in "UV_DEFAULT_INDEX", "UV_HTTP_TIMEOUT", "UV_FIND_LINKS":
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_uv_gets_the_words_and_the_settings(beside: Path) -> None:
    said = beside / "said"
    told = "f\"{os.environ['UV_DEFAULT_INDEX']} {sys.argv[1:]}\""
    program(beside / "uv", f"open({str(said)!r}, 'w').write({told})")
    assert installs.main("there/python", "-e", ".[test]") == 0
    words = ["pip", "install", "-q", "--compile-bytecode", "--python", "there/python"]
    words += ["-e", ".[test]"]
    assert said.read_text() == f"https://two.example/it's/simple {words}"


def test_why_uv_is_not_asked(
    beside: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    assert by_uv(beside / "uv", "there/python", []) == "uv is not here"
    uv = program(beside / "uv", "sys.exit('never')")
    monkeypatch.delitem(installs._VARIABLES, "cert")
    assert by_uv(uv, "there/python", []) == "uv cannot be told pip's setting cert"
    assert capfd.readouterr() == ("", "")


def test_pip_installs_where_uv_fails(beside: Path, capfd: pytest.CaptureFixture[str]) -> None:
    program(beside / "uv", "sys.exit(2)")
    assert installs.main("there/python", "pip", "-e", ".") == 3
    words = ["-m", "pip", "--python", "there/python", "install", "-q", "pip", "-e", "."]
    assert capfd.readouterr() == (f"{words}\n", "uv ended with status 2: pip installs\n")
