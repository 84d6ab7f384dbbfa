"""Options of the command line under the names of other clients."""

from __future__ import annotations

from pathlib import Path

import pytest

from gnsqsync.cli.app import run_command


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("pub t --delay 3", "--defer"),
        ("consume t c m:f --max-tries 3", "--max-attempts"),
        ("consume t c m:f --lookupd x:1", "--lookupd-http-address"),
        ("consume t c m:f --workers 3", "--concurrency"),
        ("tail t --nsqd x:1", "--nsqd-tcp-address"),
    ],
)
def test_an_option_of_another_client_leads_to_the_right_one(
    words: str, told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(words.split()) == 2
    given = next(word for word in words.split() if word.startswith("--"))
    assert f"No such option '{given}'. Did you mean {told}?" in capsys.readouterr().err


def test_a_misspelt_option_leads_to_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["pub", "t", "--defr", "3"]) == 2
    assert "--defer" in capsys.readouterr().err
    assert run_command(["pub", "t", "--zzzzzz", "3"]) == 2
    assert "Did you mean" not in capsys.readouterr().err


def test_a_body_in_place_of_the_file_leads_to_standard_input(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert run_command(["pub", "t", "hello there"]) == 2
    assert "there is no file 'hello there'; the messages are lines" in capsys.readouterr().err


def test_reload_waits_for_the_repair_of_a_function_that_is_no_handler(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "jobs_of_reload.py").write_text("async def work(message): pass")
    monkeypatch.syspath_prepend(tmp_path)
    waited: list[object] = []
    monkeypatch.setattr(
        "gnsqsync.process.reload._begin_anew_after_change", lambda files, say: waited.append(say)
    )
    words = ["consume", "t", "c", "jobs_of_reload:work"]
    assert run_command(words) == 2 and not waited
    with pytest.raises(SystemExit) as ended:
        run_command([*words, "--reload"])
    assert (ended.value.code, len(waited)) == (0, 1)
    assert "a coroutine function" in capsys.readouterr().err
