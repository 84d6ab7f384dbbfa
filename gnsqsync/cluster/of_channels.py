"""Findings about topics and channels: why messages wait, go round, or go away. Pure."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from difflib import get_close_matches

from gnsqsync.cluster.findings import Finding, Level
from gnsqsync.cluster.sight import Snapshot
from gnsqsync.cluster.topic_views import ChannelView, TopicView, topic_views
from gnsqsync.cluster.words import short, some_of, verb, waiting
from gnsqsync.stats import counted

__all__ = ["RULES", "names_dead_letters"]

# Names of topics that look like those of dead letters.
_LETTERS = re.compile(r".+[-._](?:dead|dead[-._]?letters?|dlq)(?:#ephemeral)?", re.IGNORECASE)
# Share of messages that timed out from which on it is a trouble.
_MANY_TIMEOUTS = 0.1
# Requeues per message from which on it is a trouble.
_MANY_REQUEUES = 1.0
# Upper bound of programs that a finding names.
_PROGRAMS = 5
# Requeues between the looks, from which on messages go round.
_LOOP = 3
# nsqd's default of --mem-queue-size, for an nsqd that does not tell its own.
_MEM_QUEUE_SIZE = 10000


def names_dead_letters(topic: str) -> bool:
    """Return True if a topic has the name of one for dead letters, such as ``orders-dead``."""
    return _LETTERS.fullmatch(topic) is not None


# -- topics --------------------------------------------------------------------------------------


def _missing(seen: Snapshot) -> Iterator[Finding]:
    """Find a topic or channel of the question that does not exist."""
    answering = [nsqd for nsqd in seen.nsqds if nsqd.after is not None]
    views = list(topic_views(seen))
    if not answering or seen.topic is None:
        return
    asked = f"{counted(len(answering), 'nsqd')} answered"
    if not views:
        listed = {
            name for nsqd in seen.nsqds for node in nsqd.listed.values() for name in node.topics
        }
        yield Finding(
            "no_such_topic",
            Level.ERROR,
            seen.topic,
            f"No nsqd has the topic {seen.topic} ({asked}).",
            f"{_did_you_mean(seen.topic, listed)}The first message or consumer makes a topic.",
        )
    elif seen.channel is not None and not views[0].channels:
        others = {each.channel_name for _, topic in views[0].at for each in topic.channels}
        yield Finding(
            "no_such_channel",
            Level.ERROR,
            f"{seen.topic}/{seen.channel}",
            f"No nsqd has the channel {seen.channel} of topic {seen.topic} ({asked}).",
            f"{_did_you_mean(seen.channel, others)}The first consumer makes a channel, which then"
            " gets each later message.",
        )


def _paused_topic(topic: TopicView) -> Iterator[Finding]:
    paused = [nsqd.name for nsqd, one in topic.at if one.paused]
    if paused:
        depth = sum(one.depth for _, one in topic.at if one.paused)
        yield Finding(
            "topic_paused",
            Level.ERROR if depth else Level.WARNING,
            topic.name,
            f"The topic {topic.name} is paused at {_of(len(paused), len(topic.at))}, so its"
            f" channels get nothing; {waiting(depth)}.",
            f"Let it go on: gnsqsync topic unpause {topic.name}.",
            depth,
        )


def _no_channel(topic: TopicView) -> Iterator[Finding]:
    bare = [one for _, one in topic.at if not one.channels and not one.paused]
    depth = sum(one.depth for one in bare)
    if not bare or names_dead_letters(topic.name):
        return
    if len(bare) == len(topic.at):
        yield Finding(
            "no_channel",
            Level.ERROR if depth else Level.HINT,
            topic.name,
            f"The topic {topic.name} has no channel; {waiting(depth)} for the first one.",
            "Start a consumer, which makes its channel; or delete the topic if nobody needs it.",
            depth,
        )
    elif depth:
        yield Finding(
            "no_channel",
            Level.ERROR,
            topic.name,
            f"The topic {topic.name} has no channel at {_of(len(bare), len(topic.at))}, where"
            f" {waiting(depth)}.",
            "See that consumers find and reach each nsqd of the topic: a consumer makes its channel"
            " where it connects.",
            depth,
        )


def _dead_letters(topic: TopicView) -> Iterator[Finding]:
    if not names_dead_letters(topic.name):
        return
    unread = [each.total("depth") for each in topic.channels if not each.clients]
    depth = topic.depth + max(unread, default=0)
    if depth:
        yield Finding(
            "dead_letters",
            Level.HINT,
            topic.name,
            f"{counted(depth, 'dead letter')} {verb(depth)} in {topic.name} for a person.",
            f"Look at them: gnsqsync dead-letters list {topic.name}.",
            depth,
        )


# -- channels ------------------------------------------------------------------------------------


def _paused(channel: ChannelView) -> Iterator[Finding]:
    paused = [part for part in channel.parts if part.now.paused]
    if paused:
        depth = sum(part.now.depth for part in paused)
        yield Finding(
            "channel_paused",
            Level.ERROR if depth else Level.WARNING,
            channel.where,
            f"The channel is paused at {_of(len(paused), len(channel.parts))}, so its consumers get"
            f" nothing; {waiting(depth)}.",
            f"Let it go on: gnsqsync channel unpause {channel.topic} {channel.name}.",
            depth,
        )


def _no_consumers(channel: ChannelView) -> Iterator[Finding]:
    if names_dead_letters(channel.topic):
        return
    bare = [part for part in channel.parts if not part.now.clients and not part.now.paused]
    depth = sum(part.now.depth for part in bare)
    if not bare:
        return
    if not channel.clients:
        yield Finding(
            "no_consumers",
            Level.ERROR if depth else Level.HINT,
            channel.where,
            f"No consumer is connected to the channel; {waiting(depth)}.",
            "Start its consumers, and read their log if they run; or delete the channel if nobody"
            f" needs it: gnsqsync channel delete {channel.topic} {channel.name}.",
            depth,
        )
    else:
        yield Finding(
            "not_everywhere",
            Level.ERROR if depth else Level.WARNING,
            channel.where,
            f"No consumer is connected at {some_of([part.nsqd.name for part in bare])}, though"
            f" {counted(len(channel.clients), 'consumer')} elsewhere;"
            f" {waiting(depth)} there.",
            "Let consumers use nsqlookupds, or name all nsqds, and see that they reach this nsqd at"
            " the address that it advertises.",
            depth,
        )


def _rdy_zero(channel: ChannelView) -> Iterator[Finding]:
    stuck = [part for part in channel.parts if part.is_stuck]
    if not stuck:
        return
    depth = sum(part.now.depth for part in stuck)
    clients = sum(len(part.now.clients) for part in stuck)
    if any(client.ready_count for client in channel.clients):
        yield Finding(
            "rdy_elsewhere",
            Level.WARNING,
            channel.where,
            f"The {counted(clients, 'consumer')} at {some_of([part.nsqd.name for part in stuck])}"
            f" {'has' if clients == 1 else 'have'} RDY 0, and RDY at other nsqds only;"
            f" {waiting(depth)}.",
            f"Set max_in_flight of each consumer to the number of nsqds at least,"
            f" {len(channel.parts)} here.",
            depth,
        )
        return
    requeues = channel.total("requeue_count")
    backs_off = (
        f" They are probably in backoff, after {counted(requeues, 'requeue')}." if requeues else ""
    )
    yield Finding(
        "rdy_zero",
        Level.ERROR,
        channel.where,
        f"All consumers ({clients:,}) have RDY 0, so nsqd sends nothing;"
        f" {waiting(depth)}.{backs_off}",
        "Read the log of the consumers for failures and 'backs off for'; otherwise call resume()"
        " after a pause(), and give them a max_in_flight above 0.",
        depth,
    )


def _busy(channel: ChannelView, seconds: float) -> Iterator[Finding]:
    """Find consumers that have all messages that they may have, and do not keep up."""
    parts = [part for part in channel.parts if part.now.clients and not part.now.paused]
    depth = sum(part.now.depth for part in parts)
    in_flight = sum(part.now.in_flight_count for part in parts)
    if not depth or not any(part.before for part in parts):
        return
    ready = [client.ready_count for part in parts for client in part.now.clients]
    got = sum(part.grown("message_count") for part in parts)
    left = channel.finished
    if not left and (not in_flight or channel.grown("requeue_count")):
        return  # Another rule tells why: nobody has a message, or handlers requeue them.
    if not left:
        yield Finding(
            "no_answers",
            Level.WARNING,
            channel.where,
            f"{counted(in_flight, 'message')} {'is' if in_flight == 1 else 'are'} in flight, and"
            f" none was answered in {seconds:.1f} s; {waiting(depth)}.",
            "See what the handlers do (a stack of each: py-spy, or /livez with --handler-limit);"
            " if they just take long, start more of them.",
            depth,
        )
    elif got > left:
        advice = "Start more consumers, or make the handlers quicker."
        if ready and max(ready) <= 1:
            advice = (
                "Raise max_in_flight of the consumers, which is 1 by default and here, and their"
                " concurrency."
            )
        yield Finding(
            "falls_behind",
            Level.WARNING,
            channel.where,
            f"{waiting(depth)}, and more come than leave: {got / seconds:,.1f} a second against"
            f" {left / seconds:,.1f}.",
            advice,
            depth,
        )
    else:
        drain = depth / ((left - got) / seconds) if left > got else None
        when = f"; the channel is empty in {drain:,.0f} s" if drain is not None else ""
        yield Finding(
            "drains",
            Level.HINT,
            channel.where,
            f"{waiting(depth)}, and {left / seconds:,.1f} leave a second{when}.",
            "Wait, or start more consumers if that takes too long.",
            depth,
        )


def _requeues(channel: ChannelView, seconds: float) -> Iterator[Finding]:
    grown, left = channel.grown("requeue_count"), channel.finished
    got, requeued = channel.total("message_count"), channel.total("requeue_count")
    still = sum(channel.total(name) for name in ("depth", "in_flight_count", "deferred_count"))
    is_loop = grown >= max(_LOOP, seconds, left)
    if is_loop or (grown and not left and channel.total("depth")):
        yield Finding(
            "requeue_loop",
            Level.ERROR if is_loop else Level.WARNING,
            channel.where,
            f"Messages go round: {counted(grown, 'requeue')} in {seconds:.1f} s, and"
            f" {counted(left, 'message')} done.",
            "Read the log of the consumers for the exception; raise Reject for what can never"
            " succeed, and set max_attempts and dead_letter_topic.",
            still,
        )
    elif got and still and requeued >= _MANY_REQUEUES * got:
        yield Finding(
            "many_requeues",
            Level.WARNING,
            channel.where,
            f"{counted(requeued, 'requeue')} of {counted(got, 'message')} since nsqd started:"
            " handlers fail often.",
            "Read the log of the consumers for the exception, and set max_attempts and"
            " dead_letter_topic.",
            still,
        )


def _timeouts(channel: ChannelView, seconds: float) -> Iterator[Finding]:
    grown, count = channel.grown("timeout_count"), channel.total("timeout_count")
    got = channel.total("message_count")
    still = channel.total("in_flight_count") + channel.total("depth")
    limits = {part.nsqd.limits.get("msg_timeout", 0) / 1e9 for part in channel.parts} - {0.0}
    limit = f" (nsqd's --msg-timeout: {min(limits):g} s)" if limits else ""
    if grown or (still and got and count >= _MANY_TIMEOUTS * got):
        told = f"{grown:,} in {seconds:.1f} s" if grown else f"{count:,} of {got:,} messages"
        yield Finding(
            "timeouts",
            Level.WARNING,
            channel.where,
            f"Messages are not answered in time and come again: {told}{limit}.",
            "Set msg_timeout of the consumers above the time that a handler takes, or touch the"
            " message (auto_touch); see also if consumers die or hang.",
            still,
        )


def _deferred(channel: ChannelView) -> Iterator[Finding]:
    deferred = channel.total("deferred_count")
    if not deferred:
        return
    failed = channel.total("requeue_count")
    why = f", some after a failure ({counted(failed, 'requeue')} so far)" if failed else ""
    yield Finding(
        "deferred",
        Level.HINT,
        channel.where,
        f"{counted(deferred, 'message')} {verb(deferred)} for {'its' if deferred == 1 else 'their'}"
        f" time{why}.",
        "Wait: messages published with defer, or requeued with a delay, come when it is over.",
        deferred,
    )


def _programs(channel: ChannelView) -> Iterator[Finding]:
    programs: dict[str, set[str]] = defaultdict(set)
    for client in channel.clients:
        programs[client.user_agent.partition("/")[0] or "?"].add(client.hostname)
    if len(programs) > 1:
        told = "; ".join(
            f"{short(name)} on {some_of(sorted(hosts))}"
            for name, hosts in sorted(programs.items())[:_PROGRAMS]
        )
        yield Finding(
            "programs",
            Level.HINT,
            channel.where,
            "Different programs share the channel, and so each gets a part of the messages:"
            f" {told}.",
            "Give each purpose a channel of its own, unless they do the same work.",
        )


def _rdy_limit(channel: ChannelView) -> Iterator[Finding]:
    """Find consumers with the highest RDY that nsqd allows, while messages wait."""
    for part in channel.parts:
        limit = part.nsqd.limits.get("max_rdy_count", 0)
        if limit and part.now.depth and any(c.ready_count >= limit for c in part.now.clients):
            yield Finding(
                "rdy_limit",
                Level.HINT,
                channel.where,
                f"Consumers have the highest RDY that nsqd {part.nsqd.name} allows, {limit:,}, and"
                f" {waiting(part.now.depth)}.",
                "Raise --max-rdy-count of nsqd if handlers have time for more messages at once.",
                part.now.depth,
            )


def _sampled(channel: ChannelView) -> Iterator[Finding]:
    rates = sorted({client.sample_rate for client in channel.clients if client.sample_rate})
    if rates:
        yield Finding(
            "sampled",
            Level.HINT,
            channel.where,
            f"Consumers asked for a sample ({rates[0]} %): nsqd throws the other messages away.",
            "Leave sample_rate at 0 where each message counts.",
        )


def _reconnects(channel: ChannelView) -> Iterator[Finding]:
    gone = new = 0
    for part in channel.parts:
        if part.before is not None:
            before = {client.remote_address for client in part.before.clients}
            now = {client.remote_address for client in part.now.clients}
            gone, new = gone + len(before - now), new + len(now - before)
    if gone and new:
        depth = channel.total("depth")
        yield Finding(
            "reconnects",
            Level.WARNING,
            channel.where,
            f"{counted(gone, 'consumer')} went and {counted(new, 'consumer')} came between two"
            " looks.",
            "See whether consumers crash, are restarted, or do not answer heartbeats; with gevent,"
            " a handler that computes without yielding blocks them.",
            depth,
        )


def _full_ephemeral(channel: ChannelView) -> Iterator[Finding]:
    if not channel.name.endswith("#ephemeral"):
        return
    for part in channel.parts:
        size = part.nsqd.limits.get("mem_queue_size", _MEM_QUEUE_SIZE)
        if part.now.depth >= size > 0:
            yield Finding(
                "drops",
                Level.ERROR,
                channel.where,
                f"The ephemeral channel is full at {part.nsqd.name}, and nsqd throws further"
                f" messages away: its --mem-queue-size is {size:,}.",
                "Consume faster, raise --mem-queue-size, or use a channel that is not ephemeral.",
                part.now.depth,
            )


def _late_channel(topic: TopicView) -> Iterator[Finding]:
    """Find channels that got nothing, although messages were published before they existed."""
    for channel in topic.channels:
        paused = any(one.paused for _, one in topic.at)
        if not channel.total("message_count") and topic.published and not paused:
            yield Finding(
                "late_channel",
                Level.HINT,
                channel.where,
                "The channel got none of the"
                f" {counted(topic.published, 'message')} of its topic: it was made after them.",
                "Make channels before the first message (gnsqsync channel create, or"
                " Reader.ensure_channel()): a channel gets only what is published later.",
            )


def _of_topics(seen: Snapshot) -> Iterator[Finding]:
    for topic in topic_views(seen):
        yield from _paused_topic(topic)
        yield from _dead_letters(topic)
        yield from _late_channel(topic)
        if seen.channel is None:
            yield from _no_channel(topic)


def _of_channels(seen: Snapshot) -> Iterator[Finding]:
    for topic in topic_views(seen):
        for channel in topic.channels:
            yield from _paused(channel)
            yield from _no_consumers(channel)
            yield from _rdy_zero(channel)
            yield from _requeues(channel, seen.seconds)
            yield from _timeouts(channel, seen.seconds)
            yield from _busy(channel, seen.seconds)
            yield from _full_ephemeral(channel)
            yield from _reconnects(channel)
            yield from _deferred(channel)
            yield from _programs(channel)
            yield from _rdy_limit(channel)
            yield from _sampled(channel)


# Functions that look for troubles of topics and channels, in the order of the findings.
RULES = (_missing, _of_topics, _of_channels)


def _did_you_mean(name: str, known: set[str]) -> str:
    near = get_close_matches(name, sorted(known), 1)
    return f"Did you mean {near[0]}? " if near else "Correct the name, if it is another one. "


def _of(count: int, whole: int) -> str:
    if count == whole:
        return "its nsqd" if whole == 1 else f"all {whole} nsqds"
    return f"{count} of {whole} nsqds"
