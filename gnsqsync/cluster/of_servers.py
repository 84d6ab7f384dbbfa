"""Findings about servers: addresses, registrations, health, clocks, versions, limits. Pure."""

from __future__ import annotations

import ipaddress
from collections import defaultdict
from collections.abc import Iterator
from urllib.parse import urlsplit

from gnsqsync.cluster.findings import Finding, Level
from gnsqsync.cluster.sight import LIMITS, Nsqd, Snapshot
from gnsqsync.cluster.words import short, some_of, waiting
from gnsqsync.stats import counted

__all__ = ["RULES"]

# Seconds by which clocks may differ. Servers tell whole seconds only.
_CLOCKS_MAY_DIFFER = 3.0
# Nanoseconds of a second.
_NANOSECONDS = 1e9


def _about(kind: str, nsqd: Nsqd, wrong: str, right: str, level: Level = Level.ERROR) -> Finding:
    """Return a finding that concerns all messages that wait at an nsqd."""
    return Finding(kind, level, nsqd.name, wrong, right, nsqd.waiting)


def _lookupds_away(seen: Snapshot) -> Iterator[Finding]:
    for lookupd in seen.lookupds:
        if lookupd.error:
            yield Finding(
                "lookupd_away",
                Level.ERROR,
                lookupd.address,
                f"nsqlookupd {lookupd.address} does not answer: {lookupd.error}",
                "Start it, or correct its address: consumers that ask only this nsqlookupd find no"
                " nsqd.",
            )


def _no_nsqd(seen: Snapshot) -> Iterator[Finding]:
    answering = [one for one in seen.lookupds if not one.error]
    if not seen.nsqds and answering:
        yield Finding(
            "no_nsqd",
            Level.ERROR,
            ", ".join(one.address for one in answering),
            f"No nsqd is registered at {some_of([one.address for one in answering])}.",
            "Start each nsqd with --lookupd-tcp-address, the TCP port (4160) of each nsqlookupd.",
        )


def _addresses(seen: Snapshot) -> Iterator[Finding]:
    """Judge the trials of the advertised addresses."""
    for nsqd in seen.nsqds:
        yield from _tcp_address(nsqd)
        yield from _http_address(nsqd)


def _tcp_address(nsqd: Nsqd) -> Iterator[Finding]:
    tcp = nsqd.tcp
    if tcp is None or tcp.verdict == "good":
        return
    if tcp.verdict == "refused":
        yield _about(
            "nsqd_refuses",
            nsqd,
            f"nsqd {nsqd.name} does not take a client with these options: {tcp.why}",
            "Give consumers the TLS and AUTH options that this nsqd wants, and its TCP port.",
        )
    elif tcp.verdict == "silent":
        yield _about(
            "nsqd_hangs",
            nsqd,
            f"nsqd {nsqd.name} takes connections and does not answer: {tcp.why}",
            "See whether its process is stopped, swaps, or waits for its disk; and that the address"
            " is that of an nsqd's TCP port.",
        )
    elif nsqd.listed:
        yield _about(
            "nsqd_unreachable",
            nsqd,
            f"nsqd {nsqd.name} cannot be reached from this machine at the address that nsqlookupd"
            f" lists: {tcp.why}",
            "Start it, open the port, set its --broadcast-address to a name that consumers reach,"
            " or give consumers an address_map.",
        )
    else:
        yield _about(
            "nsqd_unreachable",
            nsqd,
            f"nsqd {nsqd.name} cannot be reached from this machine: {tcp.why}",
            "Start it, open the port, or correct the address.",
        )


def _http_address(nsqd: Nsqd) -> Iterator[Finding]:
    http = nsqd.http
    if http is None or http.verdict == "good":
        return
    if http.verdict == "other":
        yield Finding(
            "other_nsqd",
            Level.ERROR,
            nsqd.name,
            f"The address {http.address}, which nsqlookupd lists for nsqd {nsqd.name}, leads to"
            f" another nsqd: {http.why}.",
            "Give each nsqd a --broadcast-address of its own, which leads to it from everywhere.",
        )
    elif nsqd.tcp is None:
        yield Finding(
            "nsqd_away",
            Level.ERROR,
            nsqd.name,
            f"nsqd {nsqd.name} does not answer: {http.why}",
            "Start it, or correct its address: its HTTP port is 4151 by default.",
        )
    elif nsqd.tcp.verdict != "away":
        yield Finding(
            "http_unreachable",
            Level.WARNING,
            nsqd.name,
            f"The HTTP API of nsqd {nsqd.name} does not answer at {http.address}: {http.why}",
            "Open the HTTP port for this machine, name its address (the port after the TCP port is"
            " only a guess), and give the TLS options that it wants; otherwise this command sees"
            " nothing of that nsqd.",
        )


def _went(seen: Snapshot) -> Iterator[Finding]:
    for nsqd in seen.nsqds:
        if nsqd.info is not None and nsqd.error:
            yield _about(
                "nsqd_went",
                nsqd,
                f"nsqd {nsqd.name} answered at first, and then no more: {nsqd.error}",
                "See whether it was stopped, or whether it hangs.",
            )


def _this_machine_only(seen: Snapshot) -> Iterator[Finding]:
    """Find advertised loopback addresses, unless the whole cluster is on this machine."""
    for nsqd in seen.nsqds:
        if not nsqd.listed or not _is_loopback(nsqd.name.rpartition(":")[0].strip("[]")):
            continue
        others = [
            lookupd
            for lookupd, node in nsqd.listed.items()
            if not _is_loopback(urlsplit(lookupd).hostname or "")
            or not _is_loopback(node.remote_address.rpartition(":")[0].strip("[]"))
        ]
        if others:
            yield _about(
                "loopback",
                nsqd,
                f"nsqd {nsqd.name} is registered with an address that leads each consumer to its"
                " own machine.",
                "Start that nsqd with --broadcast-address, a name that consumers on other machines"
                " reach.",
            )


def _same_address(seen: Snapshot) -> Iterator[Finding]:
    machines: dict[str, set[str]] = defaultdict(set)
    for lookupd in seen.lookupds:
        count: dict[str, list[str]] = defaultdict(list)
        for node in lookupd.nodes:
            count[str(node.tcp_address)].append(f"{node.hostname} ({node.remote_address})")
        for address, nodes in count.items():
            if len(nodes) > 1:
                machines[address].update(nodes)
    for address, entries in machines.items():
        yield Finding(
            "same_address",
            Level.ERROR,
            address,
            f"{counted(len(entries), 'nsqd')} are registered with the same address {address}:"
            f" {some_of(sorted(entries))}.",
            "Give each nsqd a --broadcast-address of its own; consumers reach one of them now.",
        )


def _registrations(seen: Snapshot) -> Iterator[Finding]:
    answering = [one.address for one in seen.lookupds if not one.error]
    for nsqd in seen.nsqds:
        missing = [each for each in answering if each not in nsqd.listed]
        if not missing or nsqd.info is None:
            continue
        if len(missing) == len(answering):
            yield _about(
                "unlisted",
                nsqd,
                f"No nsqlookupd lists nsqd {nsqd.name}, where {waiting(nsqd.waiting)}.",
                "Start that nsqd with --lookupd-tcp-address; consumers that ask nsqlookupds do not"
                " find it.",
                Level.ERROR if nsqd.waiting else Level.WARNING,
            )
        else:
            yield Finding(
                "partly_listed",
                Level.WARNING,
                nsqd.name,
                f"nsqd {nsqd.name} is not registered at {some_of(missing)}, but at other"
                " nsqlookupds.",
                "Start that nsqd with the --lookupd-tcp-address of each nsqlookupd, and see if it"
                " reaches all of them.",
            )


def _topic_registrations(seen: Snapshot) -> Iterator[Finding]:
    """Find topics of an nsqd that its nsqlookupds do not list, or list as tombstoned."""
    for nsqd in seen.nsqds:
        if not nsqd.listed:
            continue
        told: dict[str, bool] = {}
        for node in nsqd.listed.values():
            for name, is_tombstoned in zip(node.topics, node.tombstones, strict=False):
                # A single nsqlookupd that lists the topic is enough.
                told[name] = told.get(name, True) and is_tombstoned
        for name, topic in nsqd.topics.items():
            if name not in nsqd.topics_before:
                continue  # too new for the answers of the nsqlookupds
            depth = topic.depth + max((each.depth for each in topic.channels), default=0)
            level = Level.ERROR if depth else Level.WARNING
            if name not in told and not name.endswith("#ephemeral"):
                yield Finding(
                    "topic_unlisted",
                    level,
                    f"{name} at {nsqd.name}",
                    f"nsqd {nsqd.name} has the topic {name}, and no nsqlookupd lists the topic"
                    f" there; {waiting(depth)} there.",
                    "Restart that nsqd, so that it registers its topics again.",
                    depth,
                )
            elif told.get(name):
                yield Finding(
                    "tombstoned",
                    level,
                    f"{name} at {nsqd.name}",
                    f"The topic {name} is tombstoned at nsqd {nsqd.name}, so no new consumer finds"
                    f" it; {waiting(depth)} there.",
                    "Delete the topic at that nsqd if it shall go, or wait until the tombstone ends"
                    " (nsqlookupd's --tombstone-lifetime, 45 s by default).",
                    depth,
                )


def _health(seen: Snapshot) -> Iterator[Finding]:
    for nsqd in seen.nsqds:
        if nsqd.info is not None and nsqd.health != "OK":
            yield _about(
                "unhealthy",
                nsqd,
                f"nsqd {nsqd.name} is not healthy: {short(nsqd.health)}",
                "See that its --data-path has free space and may be written; its publishers get"
                " errors until then.",
            )


def _clocks(seen: Snapshot) -> Iterator[Finding]:
    known = [(f"nsqd {one.name}", one.ahead) for one in seen.nsqds]
    known += [(f"nsqlookupd {one.address}", one.ahead) for one in seen.lookupds]
    ahead = {name: seconds for name, seconds in known if seconds is not None}
    wrong = {name: by for name, by in ahead.items() if abs(by) > _CLOCKS_MAY_DIFFER}
    if not wrong:
        return
    # If all servers agree, the clock of this machine is the one that differs.
    if len(ahead) > 1 and max(ahead.values()) - min(ahead.values()) <= _CLOCKS_MAY_DIFFER:
        by = -sum(ahead.values()) / len(ahead)
        wrong = {"this machine": by}
    for name, by in wrong.items():
        yield Finding(
            "clock",
            Level.WARNING,
            name,
            f"The clock of {name} is {abs(by):.0f} s {'ahead' if by > 0 else 'behind'}.",
            "Synchronise the clocks (NTP): ages of messages, and times at which they are due, are"
            " wrong by that.",
        )


def _versions(seen: Snapshot) -> Iterator[Finding]:
    for what, found in (
        ("nsqds", {one.name: one.info.version for one in seen.nsqds if one.info}),
        ("nsqlookupds", {one.address: one.version for one in seen.lookupds if one.version}),
    ):
        by_version = _grouped(found)
        if len(by_version) > 1:
            yield Finding(
                "versions",
                Level.HINT,
                what,
                f"The {what} have different versions: {_values(by_version)}.",
                "Run one version everywhere, once an upgrade has ended.",
            )


def _limits(seen: Snapshot) -> Iterator[Finding]:
    for name, flag in LIMITS.items():
        found = {
            one.name: _limit(name, one.limits[name]) for one in seen.nsqds if name in one.limits
        }
        by_value = _grouped(found)
        if len(by_value) > 1:
            yield Finding(
                "limits",
                Level.HINT,
                flag,
                f"The nsqds differ in {flag}: {_values(by_value)}.",
                "Start all nsqds with the same value, so that the same message is treated alike"
                " everywhere.",
            )


def _secret(seen: Snapshot) -> Iterator[Finding]:
    for nsqd in seen.nsqds:
        agreed = nsqd.agreed
        if agreed is None:
            continue
        if agreed.auth_ignored:
            yield Finding(
                "auth_ignored",
                Level.HINT,
                nsqd.name,
                f"nsqd {nsqd.name} does not ask for AUTH, though this client has a secret.",
                "Start that nsqd with --auth-http-address if only clients with a secret may use"
                " it.",
            )
        elif agreed.auth is not None and agreed.auth.get("permission_count") == 0:
            yield _about(
                "no_permission",
                nsqd,
                f"The auth server of nsqd {nsqd.name} gives this client no permission at all.",
                "Let the auth server allow the topics and channels of this secret.",
            )


# Functions that look for troubles of servers, in the order of the findings.
RULES = (
    _lookupds_away,
    _no_nsqd,
    _addresses,
    _went,
    _this_machine_only,
    _same_address,
    _registrations,
    _topic_registrations,
    _health,
    _secret,
    _clocks,
    _versions,
    _limits,
)


def _is_loopback(host: str) -> bool:
    if host in ("localhost", "localhost.localdomain"):
        return True
    try:
        return ipaddress.ip_address(host.partition("%")[0]).is_loopback
    except ValueError:
        return False


def _limit(name: str, value: int) -> str:
    return f"{value / _NANOSECONDS:g} s" if name.endswith("timeout") else f"{value:,}"


def _grouped(values: dict[str, str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = defaultdict(list)
    for name, value in values.items():
        found[value].append(name)
    return found


def _values(groups: dict[str, list[str]]) -> str:
    return "; ".join(f"{value} at {some_of(names)}" for value, names in sorted(groups.items()))
