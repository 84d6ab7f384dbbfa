"""Flags of the embedded servers: Go's syntax and wording, defaults, config file, ranges."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gnsqsync.daemon import flags, goflag
from gnsqsync.daemon.goflag import BadValue, Exit
from gnsqsync.daemon.options import OptionsError, is_loopback
from gnsqsync.embedded.options import NO_EFFECT, LookupdOptions, NsqdOptions


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("0", 0.0),
        ("-0", 0.0),
        ("250ms", 0.25),
        ("1m30s", 90.0),
        ("1h0m0.5s", 3600.5),
        (".5s", 0.5),
        ("1.s", 1.0),
        ("-2s", -2.0),
        ("+2s", 2.0),
        ("1us", 1e-6),
        ("1µs", 1e-6),
        ("15ns", 15e-9),
    ],
)
def test_durations_in_go_syntax(text: str, seconds: float) -> None:
    assert goflag.parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text", ["", "1", "x", "s", ".s", "1 s", " 1s", "1s ", "1d", "1S", "1e3s", "--1s", "9999999h"]
)
def test_texts_that_are_no_duration(text: str) -> None:
    with pytest.raises(BadValue, match="parse error"):
        goflag.parse_duration(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (0.25, "250ms"),
        (1.5e-6, "1.5µs"),
        (2e-9, "2ns"),
        (1.5, "1.5s"),
        (60, "1m0s"),
        (3600, "1h0m0s"),
        (5430.25, "1h30m30.25s"),
        (-90, "-1m30s"),
    ],
)
def test_durations_are_written_as_go_does(seconds: float, text: str) -> None:
    assert goflag.format_duration(seconds) == text


def test_ints_and_bools() -> None:
    assert [goflag.parse_int(t) for t in ("0", "-5", "+7", "0x10", "010", "0b11")] == [
        0,
        -5,
        7,
        16,
        8,
        3,
    ]
    for text in ("", "x", "1.0", "1e3", " 1", "09"):
        with pytest.raises(BadValue, match="parse error"):
            goflag.parse_int(text)
    with pytest.raises(BadValue, match="value out of range"):
        goflag.parse_int("9223372036854775808")
    assert goflag.parse_bool("T") is True
    assert goflag.parse_bool("False") is False
    with pytest.raises(BadValue):
        goflag.parse_bool("yes")


def test_every_spelling_of_a_flag() -> None:
    options = flags.parse(
        NsqdOptions,
        [
            "-snappy=false",
            "--deflate",
            "-msg-timeout",
            "1m30s",
            "--max-rdy-count=7",
            "-verbose",
            "--lookupd-tcp-address=a:1",
            "-lookupd-tcp-address",
            "b:2",
            "-tls-min-version=TLS1.2",
            "-e2e-processing-latency-percentile=0.5,0.99",
            "--log-level=WARN",
            "-http-address=",
        ],
    )
    assert options.snappy is False
    assert options.deflate is True
    assert options.msg_timeout == 90.0
    assert options.max_rdy_count == 7
    assert options.lookupd_tcp_address == ("a:1", "b:2")
    assert options.tls_min_version == "tls1.2"
    assert options.e2e_processing_latency_percentile == (0.99, 0.5)
    assert options.log_level == "warn"
    assert options.http_address == ""


def test_flags_end_at_the_first_other_word_or_two_dashes() -> None:
    assert flags.parse(NsqdOptions, ["word", "-nonsense"]) == NsqdOptions()
    assert flags.parse(NsqdOptions, ["--", "-nonsense"]) == NsqdOptions()
    assert flags.parse(NsqdOptions, ["-", "-nonsense"]) == NsqdOptions()


@pytest.mark.parametrize(
    ("argument", "first_line"),
    [
        ("-foo=1", "flag provided but not defined: -foo"),
        ("--foo", "flag provided but not defined: -foo"),
        ("-msg-timeout", "flag needs an argument: -msg-timeout"),
        ("---x", "bad flag syntax: ---x"),
        ("-=x", "bad flag syntax: -=x"),
        ("-msg-timeout=5", 'invalid value "5" for flag -msg-timeout: parse error'),
        ("-snappy=x", 'invalid boolean value "x" for -snappy: parse error'),
        (
            "-tls-required=X",
            'invalid boolean value "X" for -tls-required:'
            ' strconv.ParseBool: parsing "x": invalid syntax',
        ),
        (
            "-log-level=x",
            'invalid value "x" for flag -log-level:'
            " invalid log level 'x' (debug, info, warn, error, fatal)",
        ),
        (
            "-tls-min-version=x",
            'invalid value "x" for flag -tls-min-version: unknown tlsVersionOption "x"',
        ),
    ],
)
def test_mistakes_in_go_wording(argument: str, first_line: str) -> None:
    with pytest.raises(Exit) as caught:
        flags.parse(NsqdOptions, [argument])
    assert caught.value.status == 2
    lines = caught.value.err.splitlines()
    assert lines[:2] == [first_line, "Usage of nsqd:"]


def test_help_says_what_it_is_and_exits_0() -> None:
    for argument in ("-h", "--help"):
        with pytest.raises(Exit) as caught:
            flags.parse(LookupdOptions, [argument])
        assert caught.value.status == 0
        assert caught.value.err.startswith("Usage of nsqlookupd:\n")
        assert "embedded nsqlookupd, for development and tests" in caught.value.err
        assert '(default "127.0.0.1:4160")' in caught.value.err
    with pytest.raises(Exit) as caught:
        flags.parse(NsqdOptions, ["-help"])
    assert "-msg-timeout duration\n" in caught.value.err
    assert "(default 1m0s)" in caught.value.err


def test_version_is_found_where_the_go_program_has_it() -> None:
    with pytest.raises(Exit) as caught:
        flags.parse(NsqdOptions, ["--version"])
    assert caught.value.status == 0
    assert re.fullmatch(r"nsqd v1\.3\.0 \(built w/gnsqsync-[a-z0-9.-]+\)\n", caught.value.out)


def test_a_version_that_pip_would_call_local_is_one_word_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(flags, "__version__", "0.1.0.dev1+G12ab")
    text = flags.version_text("nsqlookupd")
    assert re.fullmatch(r"nsqlookupd v1\.3\.0 \(built w/([a-z0-9.-]+)\)", text)
    assert "gnsqsync-0.1.0.dev1-g12ab-python" in text


def test_loopback_unless_told_otherwise() -> None:
    assert NsqdOptions().tcp_address == "127.0.0.1:4150"
    assert NsqdOptions().broadcast_address == "127.0.0.1"
    for loopback in ("127.0.0.2:0", "localhost:1", "[::1]:1", "/tmp/nsqd.sock"):
        assert is_loopback(loopback)
    for address in ("0.0.0.0:4150", ":4150", "[::]:4150", "example.org:4150"):
        assert not is_loopback(address)
    import socket

    assert LookupdOptions(tcp_address=":4160").broadcast_address == socket.gethostname()
    assert LookupdOptions(broadcast_address="h").broadcast_address == "h"


@pytest.mark.parametrize(
    ("argument", "text"),
    [
        ("-max-deflate-level=10", "--max-deflate-level must be [1,9]"),
        ("-max-deflate-level=0", "--max-deflate-level must be [1,9]"),
        ("-node-id=1024", "--node-id must be [0,1024)"),
        ("-node-id=-1", "--node-id must be [0,1024)"),
        (
            "-tls-required",
            "cannot require TLS client connections without TLS key and cert",
        ),
        (
            "-tls-client-auth-policy=require",
            "cannot require TLS client connections without TLS key and cert",
        ),
        (
            "-e2e-processing-latency-percentile=2",
            "invalid E2E processing latency percentile: 2",
        ),
        ("-output-buffer-timeout=0", "--output-buffer-timeout must be positive"),
    ],
)
def test_values_nsqd_does_not_start_with(argument: str, text: str) -> None:
    with pytest.raises(OptionsError) as caught:
        flags.parse(NsqdOptions, [argument])
    assert str(caught.value) == text


def test_a_client_certificate_policy_requires_tls() -> None:
    options = NsqdOptions(tls_client_auth_policy="require", tls_cert="c", tls_key="k")
    assert options.tls_required == "true"


def _config(tmp_path: Path, text: str) -> str:
    path = tmp_path / "nsqd.cfg"
    path.write_text(text)
    return f"--config={path}"


def test_config_file(tmp_path: Path) -> None:
    config = _config(
        tmp_path,
        'id = 5\nmsg_timeout = "2m"\nmax_msg_timeout = 150000\nsnappy = false\nunknown = 1\n'
        'nsqlookupd_tcp_addresses = ["a:1", "b:2"]\ntls_required = false\nlog_level = "DEBUG"\n'
        'auth_http_addresses = "x:1,y:2"\nmax_rdy_count = "9"\n'
        "e2e_processing_latency_percentiles = [1.0, 0.5]\n",
    )
    options = flags.parse(NsqdOptions, [config, "--max-rdy-count=8"])
    assert options.node_id == 5
    assert options.msg_timeout == 120.0
    assert options.max_msg_timeout == 150.0
    assert options.snappy is False
    assert options.lookupd_tcp_address == ("a:1", "b:2")
    assert options.auth_http_address == ("x:1", "y:2")
    assert options.log_level == "debug"
    assert options.max_rdy_count == 8
    assert options.e2e_processing_latency_percentile == (1.0, 0.5)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("snappy = 1", "failed parsing snappy 1 - int is not bool"),
        ('msg_timeout = "x"', "failed parsing msg_timeout x - parse error"),
        ("tcp_address = 1", "failed parsing tcp_address 1 - int is not string"),
        ("= broken", "failed to load config file"),
    ],
)
def test_config_file_mistakes(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(OptionsError) as caught:
        flags.parse(NsqdOptions, [_config(tmp_path, text)])
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("mem_queue_sise", "; did you mean 'mem_queue_size'?"),
        ('"mem-queue-size"', "; did you mean 'mem_queue_size'?"),
        ("lookupd_tcp_address", "; did you mean 'nsqlookupd_tcp_addresses'?"),
        ("node_id", "; did you mean 'id'?"),
        ("colour", "; 'log_level' and others are known, see -help"),
    ],
)
def test_each_flag_without_effect_is_one_warning(tmp_path: Path, key: str, meant: str) -> None:
    warnings: list[str] = []
    config = _config(tmp_path, f"max_rdy_count = 9\n{key} = 1\n")
    flags.parse(NsqdOptions, [config], warnings.append)
    name = key.strip('"')
    assert warnings == [f"nothing reads the key {name!r} of {tmp_path / 'nsqd.cfg'}{meant}"]


def test_arguments_that_nothing_reads_are_one_warning() -> None:
    warnings: list[str] = []
    flags.parse(NsqdOptions, ["--snappy", "false", "--deflate"], warnings.append)
    assert warnings == [
        "nothing reads 'false --deflate': flags begin with '-', and end at the first argument that"
        " does not"
    ]
    warnings.clear()
    flags.parse(NsqdOptions, ["--snappy=false"], warnings.append)
    assert warnings == []


def test_missing_config_file() -> None:
    with pytest.raises(OptionsError) as caught:
        flags.parse(NsqdOptions, ["--config=/no/such.cfg"])
    assert str(caught.value) == (
        "failed to load config file /no/such.cfg - open /no/such.cfg: no such file or directory"
    )


def test_config_values_as_http_shows_them() -> None:
    options = NsqdOptions(tls_min_version="tls1.2", lookupd_tcp_address=("a:1",))
    shown = {n: flags.config_value(options, n) for n in flags.config_names(NsqdOptions)}
    assert shown["msg_timeout"] == 60_000_000_000
    assert shown["max_rdy_count"] == 2500
    assert shown["log_level"] == 2
    assert shown["tls_min_version"] == 771
    assert shown["tls_required"] == 0
    assert shown["nsqlookupd_tcp_addresses"] == ["a:1"]
    assert shown["id"] == options.node_id
    assert shown["tcp_address"] == "127.0.0.1:4150"
    assert "node_id" not in shown
    with pytest.raises(KeyError):
        flags.config_value(options, "verbose")


def test_every_option_survives_the_way_through_its_flag() -> None:
    for cls in (NsqdOptions, LookupdOptions):
        options = cls(log_level="warn", tcp_address="127.0.0.1:0")
        arguments = [
            argument
            for name in cls.known
            for argument in flags.flag_text(cls, name, getattr(options, name))
        ]
        assert flags.parse(cls, arguments) == options


def test_options_are_frozen_values() -> None:
    options = NsqdOptions(msg_timeout=5.0)
    with pytest.raises(AttributeError, match=r"use replace\(\)"):
        options.msg_timeout = 6.0
    changed = options.replace(tcp_address=":1")
    assert (changed.msg_timeout, changed.tcp_address) == (5.0, ":1")
    assert options != changed
    assert options == NsqdOptions(msg_timeout=5.0)
    assert "'msg_timeout': 5.0" in repr(options)
    with pytest.raises(TypeError, match="unknown options: msg_timeuot; did you mean 'msg_timeout'"):
        NsqdOptions(msg_timeuot=5.0)


def test_flags_without_effect_exist_and_say_so() -> None:
    usage = flags.flag_set(NsqdOptions).usage()
    assert usage.count("has no effect in the embedded nsqd") == len(NO_EFFECT)
    assert NsqdOptions.known.keys() >= NO_EFFECT


def test_a_sync_timeout_that_would_never_end() -> None:
    NsqdOptions(sync_every=0, max_bytes_per_file=-5, mem_queue_size=0).check()
    for seconds in (0.0, -1.0):
        with pytest.raises(OptionsError, match="--sync-timeout must be positive"):
            NsqdOptions(sync_timeout=seconds).check()
