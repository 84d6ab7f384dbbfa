"""Servers as child processes: ports, stop, kill, restart, parents that die, patched processes."""

from __future__ import annotations

import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import textwrap
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import trustme

from gnsqsync.embedded import Nsqd, Nsqlookupd
from gnsqsync.embedded.process import ServerFailed
from gnsqsync.errors import ConfigError
from tests.support.ports import free_ports
from tests.support.waiting import eventually

TIMEOUT = 60.0

# Behaves like a Go binary as far as process.py can see: the two log lines, and SIGTERM.
FAKE_BINARY = """
import signal, socket, sys
flags = dict(argument[2:].split("=", 1) for argument in sys.argv[1:])
for label, name in (("TCP", "tcp-address"), ("HTTP", "http-address")):
    listener = socket.create_server((flags[name].split(":")[0], int(flags[name].split(":")[1])))
    globals()[label] = listener
    port = listener.getsockname()[1]
    print(f"[nsqd] 2026/11/20 20:00:00.000000 INFO: {label}: listening on 127.0.0.1:{port}",
          file=sys.stderr, flush=True)
signal.signal(signal.SIGTERM, lambda *_: sys.exit(3))
signal.pause()
"""


@pytest.fixture
def fake_binary(tmp_path: Path) -> str:
    path = tmp_path / "fake-nsqd"
    path.write_text(f"#!{sys.executable}\n{FAKE_BINARY}")
    path.chmod(0o755)
    return str(path)


def get(url: str) -> Any:
    with urllib.request.urlopen(f"http://{url}", timeout=TIMEOUT) as answer:
        return answer.read()


def is_alive(pid: int) -> bool:
    """Whether the process exists and has not ended: its parent cannot wait() for it yet."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        threads = os.listdir(f"/proc/{pid}/task")
    except (FileNotFoundError, ProcessLookupError):
        return False
    # A process is a zombie when its first thread is, but it has ended with its last one only.
    return state != "Z" or len(threads) > 1


def wait_for_death(pid: int) -> None:
    eventually(lambda: not is_alive(pid), TIMEOUT, describe=f"the end of process {pid}")


def run_python(source: str, *arguments: str) -> str:
    """stdout of a Python process; its stderr must stay empty."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", textwrap.dedent(source), *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT * 2,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_start_and_stop() -> None:
    lookupd = Nsqlookupd()
    with pytest.raises(ServerFailed, match="not started"):
        _ = lookupd.tcp_address
    with lookupd:
        pid = lookupd.pid
        assert lookupd.is_running
        assert lookupd.start() is lookupd
        assert lookupd.pid == pid
        assert get(f"{lookupd.http_address}/ping") == b"OK"
        host, _, port = lookupd.tcp_address.partition(":")
        socket.create_connection((host, int(port)), timeout=TIMEOUT).close()
        first, *_ = lookupd.log.splitlines()
        assert first.endswith(
            "INFO: this is gnsqsync's embedded nsqlookupd, for development and tests"
        )
        assert lookupd.stop() == 0
        assert not lookupd.is_running
        assert lookupd.stop() == 0
        wait_for_death(pid)
    assert "TCP: closing" in lookupd.log


def test_restart_and_kill_keep_the_ports() -> None:
    with Nsqlookupd() as lookupd:
        addresses = lookupd.tcp_address, lookupd.http_address
        assert lookupd.kill() == -signal.SIGKILL
        assert not lookupd.is_running
        lookupd.restart()
        assert (lookupd.tcp_address, lookupd.http_address) == addresses
        lookupd.restart()
        assert get(f"{addresses[1]}/ping") == b"OK"


def test_a_server_that_ends_by_itself_is_noticed() -> None:
    with Nsqlookupd() as lookupd:
        os.kill(lookupd.pid, signal.SIGKILL)
        wait_for_death(lookupd.pid)
        assert not lookupd.is_running
        with pytest.raises(ServerFailed, match="not running"):
            _ = lookupd.pid
        assert lookupd.stop() == -signal.SIGKILL


def test_given_ports_and_flags() -> None:
    with (
        free_ports() as (port,),
        Nsqlookupd(
            tcp_address=f"localhost:{port}", broadcast_address="there", tombstone_lifetime=1.5
        ) as lookupd,
    ):
        assert lookupd.tcp_address == f"localhost:{port}"
        assert get(f"{lookupd.http_address}/topics") == b'{"topics":[]}'


def test_flags_that_do_not_exist() -> None:
    with pytest.raises(ConfigError, match=r"no flag 'mesg_timeout'; did you mean 'msg_timeout'"):
        Nsqd(mesg_timeout=1)
    with pytest.raises(ConfigError, match="nsqlookupd has no flag 'data_path'"):
        Nsqlookupd(data_path="/tmp")
    with pytest.raises(ConfigError, match="log_level must be debug or info"):
        Nsqd(log_level="error")


def test_a_server_that_does_not_start_says_why() -> None:
    with Nsqlookupd() as other:
        second = Nsqlookupd(tcp_address=other.tcp_address)
        with pytest.raises(ServerFailed, match="address already in use") as caught:
            second.start()
        assert "nsqlookupd ended with exit code 1" in str(caught.value)
        assert f"failed to instantiate nsqlookupd - listen ({other.tcp_address})" in str(
            caught.value
        )
        second.close()


def test_a_server_that_stays_silent(tmp_path: Path) -> None:
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\necho not yet >&2\nexec sleep 1000\n")
    silent.chmod(0o755)
    server = Nsqd(binary=str(silent), start_timeout=0.5)
    with pytest.raises(ServerFailed, match=r"did not listen in 0\.5 s.*\nnot yet"):
        server.start()
    assert not server.is_running
    server.close()


def test_a_binary_gets_the_flags(fake_binary: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    server = Nsqd(
        binary=fake_binary,
        data_path=data,
        lookupd_tcp_addresses=["127.0.0.1:1"],
        msg_timeout=2,
        snappy=False,
    )
    with server:
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes().decode().split("\0")
        assert {
            "--msg-timeout=2000000000ns",
            "--snappy=false",
            "--lookupd-tcp-address=127.0.0.1:1",
            "--tcp-address=127.0.0.1:0",
            "--broadcast-address=127.0.0.1",
            f"--data-path={data}",
        } <= set(command)
        assert server.stop() == 3
        address = server.tcp_address
        server.start()
        command = Path(f"/proc/{server.pid}/cmdline").read_bytes().decode().split("\0")
        assert f"--tcp-address={address}" in command
    assert data.is_dir()


def test_sigterm_ignored_is_followed_by_sigkill(fake_binary: str) -> None:
    text = Path(fake_binary).read_text().replace("lambda *_: sys.exit(3)", "signal.SIG_IGN")
    Path(fake_binary).write_text(text)
    with Nsqd(binary=fake_binary) as server:
        assert server.stop(timeout=0.2) == -signal.SIGKILL


def test_temporary_data_is_removed_at_close(fake_binary: str) -> None:
    server = Nsqd(binary=fake_binary)
    with server:
        folder = Path(server.data_path)
        server.stop()
        assert folder.is_dir()
    assert not folder.parent.exists()


ORPHANS = """
    import os, sys
    from gnsqsync.embedded import Nsqd, Nsqlookupd
    servers = [Nsqlookupd().start(), Nsqd(binary=sys.argv[1]).start()]
    print(*(server.pid for server in servers), flush=True)
    {end}
"""


@pytest.mark.parametrize("end", ["os._exit(0)", "pass", "os.kill(os.getpid(), 9)"])
def test_nothing_outlives_the_parent(fake_binary: str, end: str) -> None:
    source = textwrap.dedent(ORPHANS).format(end=end)
    done = subprocess.run(
        [sys.executable, "-c", source, fake_binary], stdout=subprocess.PIPE, timeout=TIMEOUT * 2
    )
    pids = [int(word) for word in done.stdout.split()]
    assert len(pids) == 2
    for pid in pids:
        wait_for_death(pid)


def test_a_forked_child_leaves_the_server_alone() -> None:
    output = run_python(
        """
        import os, sys
        from gnsqsync.embedded import Nsqlookupd
        with Nsqlookupd() as lookupd:
            child = os.fork()
            if child == 0:
                sys.exit(0)
            os.waitpid(child, 0)
            print(lookupd.is_running)
        """
    )
    assert output == "True\n"


def test_in_a_patched_process() -> None:
    output = run_python(
        """
        import gevent.monkey; gevent.monkey.patch_all()
        import gevent
        from gnsqsync.embedded import Nsqlookupd
        turns = []
        def turn():
            while True:
                gevent.sleep(0.01)
                turns.append(1)
        other = gevent.spawn(turn)
        with Nsqlookupd() as lookupd:
            lookupd.kill()
            lookupd.restart()
            print(lookupd.is_running, lookupd.stop(), len(turns) > 3)
        other.kill()
        """
    )
    assert output == "True 0 True\n"


def test_the_asking_process_loads_no_server() -> None:
    output = run_python(
        """
        import sys
        from gnsqsync.embedded import Nsqd, Nsqlookupd
        Nsqd(), Nsqlookupd()
        print([name for name in ("gevent", "requests", "snappy") if name in sys.modules])
        """
    )
    assert output == "[]\n"


def embedded(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "gnsqsync.embedded", *arguments],
        capture_output=True,
        text=True,
        timeout=TIMEOUT,
    )


def test_the_command_line() -> None:
    done = embedded("nsqd", "--version")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith("nsqd v1.3.0 (built w/")
    done = embedded("nsqlookupd", "-nope")
    assert done.returncode == 2
    assert done.stderr.startswith("flag provided but not defined: -nope\nUsage of nsqlookupd:\n")
    assert embedded().returncode == embedded("nsqx").returncode == 2
    done = embedded("nsqd", "--max-deflate-level=10")
    assert done.returncode == 1
    assert done.stderr.endswith(
        " FATAL: failed to instantiate nsqd - --max-deflate-level must be [1,9]\n"
    )
    done = embedded("nsqd", "--config=/no/such")
    assert done.stderr.endswith(
        " FATAL: failed to load config file /no/such - open /no/such: no such file or directory\n"
    )


def test_sigint_is_a_clean_stop_and_the_log_warns_of_open_addresses() -> None:
    with Nsqlookupd(http_address="0.0.0.0:0") as lookupd:
        assert "WARNING: 0.0.0.0:0 can be reached from other machines" in lookupd.log
        assert lookupd.http_address.startswith("127.0.0.1:")
        os.kill(lookupd.pid, signal.SIGINT)
        wait_for_death(lookupd.pid)
        assert lookupd.stop() == 0


def test_a_large_half_sent_command_gets_its_answer() -> None:
    with Nsqlookupd() as lookupd:
        host, _, port = lookupd.tcp_address.partition(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT) as sock:
            sock.sendall(b"  V1IDENTIFY\n\0\0\0\5ab")
            sock.shutdown(socket.SHUT_WR)
            assert sock.makefile("rb").read()[4:] == b"E_BAD_BODY IDENTIFY failed to read body"
        with socket.create_connection((host, int(port)), timeout=TIMEOUT) as sock:
            sock.sendall(b"  V1FOO\n" + b"x" * 1_000_000)
            assert sock.makefile("rb").read()[4:] == b"E_INVALID invalid command FOO"


def test_http_keep_alive_and_request_bodies() -> None:
    with Nsqlookupd() as lookupd:
        host, _, port = lookupd.http_address.partition(":")
        with socket.create_connection((host, int(port)), timeout=TIMEOUT) as sock:
            stream = sock.makefile("rb")
            for head, body in (
                ("Content-Length: 0", b""),
                ("X-None: 1", b""),
                ("Content-Length: 3", b"abc"),
                ("Transfer-Encoding: chunked", b"3\r\nabc\r\n0\r\n\r\n"),
            ):
                request = f"POST /topic/create?topic=t%23ephemeral HTTP/1.1\r\nHost: x\r\n{head}"
                sock.sendall(request.encode() + b"\r\n\r\n" + body)
                assert stream.readline() == b"HTTP/1.1 200 OK\r\n"
                while stream.readline() != b"\r\n":
                    pass
        assert json.loads(get(f"{lookupd.http_address}/topics")) == {"topics": ["t#ephemeral"]}


def test_nsqd_keeps_messages_over_restart_but_not_over_kill() -> None:
    with Nsqd() as nsqd:
        url = f"http://{nsqd.http_address}/pub?topic=t"
        urllib.request.urlopen(url, data=b"kept", timeout=TIMEOUT).close()
        nsqd.restart()
        (topic,) = json.loads(get(f"{nsqd.http_address}/stats?format=json"))["topics"]
        assert (topic["topic_name"], topic["depth"]) == ("t", 1)
        urllib.request.urlopen(url, data=b"lost", timeout=TIMEOUT).close()
        nsqd.kill()
        nsqd.restart()
        (topic,) = json.loads(get(f"{nsqd.http_address}/stats?format=json"))["topics"]
        assert topic["topic_name"] == "t"
        # The second message was in memory only.
        assert topic["depth"] < 2


def test_nsqd_without_http() -> None:
    with Nsqd(http_address="") as nsqd:
        assert nsqd.tcp_address
        with pytest.raises(ServerFailed, match="no HTTP address"):
            _ = nsqd.http_address
        with pytest.raises(ServerFailed, match="no HTTPS address"):
            _ = nsqd.https_address
        nsqd.restart()


def test_nsqd_on_a_unix_socket(tmp_path: Path) -> None:
    path = str(tmp_path / "nsqd.sock")
    with Nsqd(tcp_address=path) as nsqd:
        assert nsqd.tcp_address == path
        nsqd.restart()
        with socket.socket(socket.AF_UNIX) as sock:
            sock.connect(path)


def test_nsqd_with_https(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    issued.cert_chain_pems[0].write_to_path(certificate)
    issued.private_key_pem.write_to_path(key)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    with Nsqd(tls_cert=certificate, tls_key=key) as nsqd:
        address = nsqd.https_address
        nsqd.restart()
        assert nsqd.https_address == address
        url = f"https://{address}/ping"
        with urllib.request.urlopen(url, context=context, timeout=TIMEOUT) as answer:
            assert answer.read() == b"OK"
