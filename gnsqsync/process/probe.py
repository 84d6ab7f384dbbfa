"""The request of a probe to a consuming command's page: is it alive, or ready?

Knows HTTP and the paths of that page. Loads neither requests nor prometheus_client, because a probe
starts every few seconds.
"""

from __future__ import annotations

import http.client
from dataclasses import dataclass
from urllib.parse import urlsplit

from gnsqsync.errors import ConfigError
from gnsqsync.options import check_duration, check_int
from gnsqsync.process.metrics_address import LIVE, READY, parse_metrics_address, port_of_process

__all__ = ["DEFAULT_ADDRESS", "Answer", "ask_health"]

# Address of the metrics page unless the program is given another one.
DEFAULT_ADDRESS = "127.0.0.1:9150"
# Upper bound of an answer, in bytes. Each reason is a line.
_MOST = 65536


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a consumer. ``text``: one line with the URL, and the reasons if it is bad."""

    # True if the consumer is healthy.
    good: bool
    text: str


def ask_health(
    address: str = DEFAULT_ADDRESS,
    *,
    ready: bool = False,
    processes: int = 1,
    timeout: float = 5.0,
) -> Answer:
    """Ask /livez, or with ``ready`` /readyz. For several processes return the first bad answer.

    ``address``: PORT, HOST:PORT, or a URL, whose path counts if it has one. ``processes``: number
    of ports to ask, from this one on. ``timeout``: seconds for each step of each request.
    ConfigError if a value is not valid.
    """
    check_duration("timeout", timeout, 0.001)
    check_int("processes", processes, 1)
    host, port, path = _target(address, READY if ready else LIVE)
    if port == 0:
        raise ConfigError("the address has port 0; give the port that the consumer printed")
    last = Answer(True, "")
    for number in range(processes):
        last = _ask(host, port_of_process(host, port, number), path, timeout)
        if not last.good:
            break
    return last


def _target(address: str, path: str) -> tuple[str, int, str]:
    scheme, found, _ = address.partition("://")
    if not found:
        if "/" in address:
            raise ConfigError(
                f"the address is {address!r}; a path needs a URL, such as http://{address}"
            )
        return (*parse_metrics_address(address), path)
    try:
        url = urlsplit(address)
        port, host = url.port, url.hostname
    except ValueError as error:
        raise ConfigError(f"the address is {address!r}, which is no URL: {error}") from None
    if scheme.lower() != "http" or not host:
        raise ConfigError(
            f"the address is {address!r}; it must be PORT, HOST:PORT or http://HOST:PORT"
        )
    if url.path not in ("", "/", LIVE, READY):
        raise ConfigError(f"the path is {url.path!r}; it must be {LIVE} or {READY}")
    return host, 80 if port is None else port, url.path.rstrip("/") or path


def _ask(host: str, port: int, path: str, timeout: float) -> Answer:
    shown = f"[{host}]" if ":" in host else host
    where = f"http://{shown}:{port}{path}"
    # A probe must not go through a proxy of the environment, which urllib would use.
    connection = http.client.HTTPConnection(host, port, timeout=timeout)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        lines = answer.read(_MOST).decode("utf-8", "replace").splitlines()
    except TimeoutError:
        return Answer(False, f"{where}: no answer within {timeout:g} s")
    except OSError as error:
        return Answer(False, f"{where}: {error.strerror or error}")
    except http.client.HTTPException as error:
        return Answer(False, f"{where}: the server there does not speak HTTP ({error!r})")
    finally:
        connection.close()
    if answer.status not in (200, 503):
        return Answer(
            False,
            f"{where}: answered {answer.status} {answer.reason}; is that the --metrics-address of a"
            " consumer?",
        )
    return Answer(answer.status == 200, f"{where}: {'; '.join(lines)}")
