"""The guide for Docker, Kubernetes and systemd: its files are valid, its commands and probes run.

systemd-analyze and kubernetes-validate check files where they are installed; ``nox -s deploy``.
"""

from __future__ import annotations

import configparser
import copy
import json
import re
import shlex
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
import yaml

from gnsqsync.embedded import Nsqd
from tests.support.ports import free_ports
from tests.support.programs import Program
from tests.support.texts import DOCS, code_blocks

PAGE = DOCS / "guides" / "deploy.rst"
KEDA = "github.com/kedacore/keda/v2@v2.21.0"
# What a supervisor of several processes, and the end of connections, may take beside the handlers.
AFTER_HANDLERS = 12.0
HANDLERS = "def make_invoice(message): pass\n"

(DOCKERFILE,) = code_blocks(PAGE, "dockerfile")
COMPOSE, DEPLOYMENT, EXEC_PROBE, SCALED = map(yaml.safe_load, code_blocks(PAGE, "yaml"))


def unit(number: int) -> configparser.ConfigParser:
    found = configparser.ConfigParser(interpolation=None)
    found.optionxform = str  # type: ignore[assignment,method-assign]
    found.read_string(code_blocks(PAGE, "ini")[number])
    return found


UNIT, CHECK, TIMER = unit(0), unit(1), unit(2)
POD: Any = DEPLOYMENT["spec"]["template"]["spec"]
CONTAINER: Any = POD["containers"][0]


def dockerfile(instruction: str) -> list[str]:
    (words,) = re.findall(rf"^{instruction}.*?(\[.*\])$", DOCKERFILE, re.MULTILINE)
    found: list[str] = json.loads(words)
    return found


def of_systemd(line: str) -> list[str]:
    return shlex.split(line.replace("/srv/shop/venv/bin/", ""))


# What runs the consumer -> its command, and the seconds until it is killed.
CONSUMERS = {
    "docker": (dockerfile("CMD"), float(COMPOSE["services"]["invoices"]["stop_grace_period"][:-1])),
    "kubernetes": (CONTAINER["command"], float(POD["terminationGracePeriodSeconds"])),
    "systemd": (of_systemd(UNIT["Service"]["ExecStart"]), float(UNIT["Service"]["TimeoutStopSec"])),
}
PROBES = {
    "HEALTHCHECK": dockerfile("HEALTHCHECK"),
    "compose": COMPOSE["services"]["invoices"]["healthcheck"]["test"][1:],
    "exec": EXEC_PROBE["livenessProbe"]["exec"]["command"],
    # The part of the shell's line before what follows a failure.
    "systemd": shlex.split(of_systemd(CHECK["Service"]["ExecStart"])[2].split("||")[0]),
}


def option(words: list[str], name: str) -> str:
    return words[words.index(name) + 1]


@pytest.fixture
def nsqd() -> Iterator[Nsqd]:
    with Nsqd() as server:
        yield server


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "jobs.py").write_text(HANDLERS)
    return tmp_path


def here(words: list[str], nsqd: Nsqd, port: int) -> list[str]:
    """The command of the page with the nsqd and a port of this test."""
    found = list(words)
    at = found.index("--lookupd-http-address")
    found[at : at + 2] = ["--nsqd-tcp-address", nsqd.tcp_address]
    host, _ = option(found, "--metrics-address").split(":")
    found[found.index("--metrics-address") + 1] = f"{host}:{port}"
    return found


def asks(words: list[str], port: int) -> list[str]:
    """The probe of the page, at the port of this test."""
    if "--address" in words:
        at = words.index("--address")
        words = [*words[:at], *words[at + 2 :]]
    return [*words, "--address", str(port)]


@pytest.mark.parametrize("name", CONSUMERS)
def test_a_consumer_runs_is_probed_and_drains(name: str, nsqd: Nsqd, folder: Path) -> None:
    words, _ = CONSUMERS[name]
    processes = 4 if name == "kubernetes" else 1
    with free_ports(processes, in_a_row=True) as (port, *_):
        is_probed_and_drains(words, processes, port, nsqd, folder)


def is_probed_and_drains(
    words: list[str], processes: int, port: int, nsqd: Nsqd, folder: Path
) -> None:
    more = ["--processes", str(processes)] if processes > 1 else []
    consumer = Program([*here(words, nsqd, port), *more], folder)
    try:
        for kind in ("livenessProbe", "readinessProbe"):
            probe = CONTAINER[kind]["httpGet"]
            assert probe["port"] in [each["name"] for each in CONTAINER["ports"]]
            url = f"http://127.0.0.1:{port}{probe['path']}"
            consumer.wait_for("metrics at ")
            consumer.eventually(lambda url=url: answers(url))
        for probe_name, probe_words in PROBES.items():
            if "--processes" in probe_words and processes == 1:
                continue
            assert probe_words[0] == "gnsqsync", probe_name
            consumer.eventually(
                lambda w=probe_words: Program(asks(w, port), folder).process.wait(60) == 0
            )
        consumer.signal(signal.SIGTERM)
        consumer.end(0)
        down = Program(asks(PROBES["HEALTHCHECK"], port), folder)
        assert "Connection refused" in down.end(1)
    finally:
        consumer.kill()


def answers(url: str) -> bool:
    try:
        return requests.get(url, timeout=60).status_code == 200
    except requests.ConnectionError:
        return False  # another one of the processes was the first to say where it is


@pytest.mark.parametrize("name", CONSUMERS)
def test_the_drain_has_more_time_than_the_handlers(name: str) -> None:
    words, grace = CONSUMERS[name]
    assert float(option(words, "--shutdown-timeout")) + AFTER_HANDLERS < grace
    (stop,) = re.findall(r"docker stop -t (\d+)", PAGE.read_text(encoding="utf-8"))
    assert float(option(CONSUMERS["docker"][0], "--shutdown-timeout")) + AFTER_HANDLERS < int(stop)


def test_each_probe_has_less_time_than_its_caller() -> None:
    (limit,) = re.findall(r"--timeout=(\d+)s", DOCKERFILE)
    assert float(option(PROBES["HEALTHCHECK"], "--timeout")) < float(limit)
    check = COMPOSE["services"]["invoices"]["healthcheck"]
    assert float(option(PROBES["compose"], "--timeout")) < float(check["timeout"][:-1])
    many = float(option(PROBES["exec"], "--timeout")) * int(option(PROBES["exec"], "--processes"))
    assert many < EXEC_PROBE["livenessProbe"]["timeoutSeconds"]


def test_the_port_is_the_same_everywhere() -> None:
    ports = {option(words, "--metrics-address").split(":")[1] for words, _ in CONSUMERS.values()}
    (exposed,) = [each["containerPort"] for each in CONTAINER["ports"]]
    annotations = DEPLOYMENT["spec"]["template"]["metadata"]["annotations"]
    assert ports == {str(exposed)} == {annotations["prometheus.io/port"]}
    assert option(PROBES["exec"], "--address") == str(exposed)


def test_keda_scales_what_the_deployment_runs() -> None:
    assert SCALED["spec"]["scaleTargetRef"]["name"] == DEPLOYMENT["metadata"]["name"]
    (trigger,) = SCALED["spec"]["triggers"]
    assert trigger["type"] == "nsq"
    topic, channel = CONTAINER["command"][2:4]
    told = trigger["metadata"]
    assert (told["topic"], told["channel"]) == (topic, channel)
    assert told["nsqLookupdHTTPAddresses"] == option(CONTAINER["command"], "--lookupd-http-address")
    # As its documentation has them; all values are texts.
    assert set(told) <= {
        *("nsqLookupdHTTPAddresses", "topic", "channel", "depthThreshold"),
        *("activationDepthThreshold", "useHttps", "unsafeSsl"),
    }
    assert all(isinstance(value, str) for value in told.values())


@pytest.fixture(scope="module")
def keda() -> Path:
    """The source of KEDA, as Go fetches a module."""
    if shutil.which("go") is None:
        pytest.skip("Go is not installed")
    done = subprocess.run(
        ["go", "mod", "download", "-json", KEDA], capture_output=True, text=True, timeout=100
    )
    if done.returncode:
        pytest.skip(f"KEDA cannot be fetched: {done.stdout}{done.stderr}")
    return Path(json.loads(done.stdout)["Dir"])


def test_keda_takes_the_object(keda: Path) -> None:
    """By the schema of its resource, and the keys of its scaler for NSQ."""
    validate = pytest.importorskip("jsonschema").validate
    resource = yaml.safe_load(
        (keda / "config" / "crd" / "bases" / "keda.sh_scaledobjects.yaml").read_text("utf-8")
    )
    assert SCALED["apiVersion"] == f"{resource['spec']['group']}/v1alpha1"
    (version,) = resource["spec"]["versions"]
    validate(SCALED, version["schema"]["openAPIV3Schema"])
    wrong = copy.deepcopy(SCALED)
    wrong["spec"]["maxReplicaCount"] = "twenty"
    with pytest.raises(Exception, match="twenty"):
        validate(wrong, version["schema"]["openAPIV3Schema"])
    scaler = (keda / "pkg" / "scalers" / "nsq_scaler.go").read_text("utf-8")
    known = set(re.findall(r'`keda:"name=(\w+),', scaler))
    assert set(SCALED["spec"]["triggers"][0]["metadata"]) <= known


def test_the_unit_restarts_the_consumer_and_nothing_else() -> None:
    assert UNIT["Service"]["Type"] == "exec"
    condition, start = CHECK["Service"]["ExecCondition"], CHECK["Service"]["ExecStart"]
    assert condition.split()[-1] == "invoices.service"
    assert start.endswith("|| systemctl restart invoices.service'")
    assert TIMER["Install"]["WantedBy"] == "timers.target"


# -- what others say of the files ----------------------------------------------------------------


def verified(folder: Path, texts: dict[str, str]) -> str:
    """What systemd-analyze says of units; nothing where it has nothing to say."""
    program = folder / "bin" / "gnsqsync"
    program.parent.mkdir(exist_ok=True)
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    for name, text in texts.items():
        (folder / name).write_text(text.replace("/srv/shop/venv/bin/", f"{program.parent}/"))
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", *(f"./{name}" for name in texts)],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0 or done.stdout
    # Of whatever else the machine has installed, other units may be wrong.
    own = [line for line in done.stdout.splitlines() if any(name in line for name in texts)]
    return "\n".join(own)


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd is not installed")
def test_systemd_has_nothing_to_say(tmp_path: Path) -> None:
    names = "invoices.service", "invoices-check.service", "invoices-check.timer"
    page = PAGE.read_text(encoding="utf-8")
    assert all(name in page for name in names)
    units = dict(zip(names, code_blocks(PAGE, "ini"), strict=True))
    assert verified(tmp_path, units) == ""
    wrong = units["invoices.service"].replace("KillMode", "KilMode")
    assert "KilMode" in verified(tmp_path, {"invoices.service": wrong})


@pytest.mark.parametrize("probes", [{}, EXEC_PROBE], ids=["http", "exec"])
def test_the_deployment_is_valid(probes: dict[str, Any]) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate")
    newest = kubernetes.latest_version()
    manifest = copy.deepcopy(DEPLOYMENT)
    manifest["spec"]["template"]["spec"]["containers"][0].update(probes)
    kubernetes.validate(manifest, newest, strict=True)
    manifest["spec"]["template"]["spec"]["terminationGracePeriod"] = 60
    with pytest.raises(kubernetes.ValidationError):
        kubernetes.validate(manifest, newest, strict=True)
