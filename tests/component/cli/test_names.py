"""Options of the command line under the names of other clients."""

from __future__ import annotations

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
