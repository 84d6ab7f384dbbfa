"""Names of options as users write them: by the names of other clients, misspelt, in other letters.

Knows the names of pynsq, gnsq, go-nsq, nsqjs, ansq and of task queues. Must not know a value or an
owner of an option.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

__all__ = ["did_you_mean", "meant", "right_name", "sentence"]

_PUBLISH_LATER = (
    "a message is deferred where it is published, publish(..., defer=seconds); a handler asks for a"
    " later try by raise Requeue(seconds), and 'requeue_delay' is the usual pause"
)
_NO_RESULTS = "a message has no result; write it where your application looks for it"
_ALWAYS_LATE = (
    "a message is always finished after its handler, and comes again if the process is killed"
)
_PLACES = "the servers are 'nsqd_tcp_addresses' or 'lookupd_http_addresses'"
_TLS_FILES = (
    "TLS has 'tls_ca_file', 'tls_cert_file', 'tls_key_file' and 'tls_verify', or an ssl.SSLContext"
    " as 'tls'"
)
_LOOKUPD_TIMES = (
    "a nsqlookupd has 1 s to connect and 2 s to answer; 'lookupd_session' takes a session of yours"
)

# Name elsewhere, to the name here or a sentence that has the names here in quotes.
_ELSEWHERE: Mapping[str, str] = {
    # pynsq and gnsq
    "max_tries": "max_attempts",
    "message_handler": "handler",
    "max_concurrency": "concurrency",
    "low_ready_idle_timeout": "low_rdy_idle_timeout",
    "tls_v1": "tls",
    "tls_options": _TLS_FILES,
    "timeout": (
        "'connect_timeout' limits connecting, 'publish_timeout' a publish of a Writer, 'time_limit'"
        " a handler, and after 'msg_timeout' nsqd gives a message to somebody else"
    ),
    "backoff_on_requeue": "a handler says it each time: raise Requeue(backoff=False)",
    "lookupd_connect_timeout": _LOOKUPD_TIMES,
    "lookupd_request_timeout": _LOOKUPD_TIMES,
    "reconnect_interval": "pauses before a new connection cannot be set: 0.5 s, then longer",
    "name": "log lines name topic and channel, and nsqd's stats show 'client_id'",
    "async": "a handler that keeps its message calls message.detach()",
    "io_loop": "there is no event loop; 'runtime' chooses threads or gevent",
    "loop": "there is no event loop; 'runtime' chooses threads or gevent",
    # go-nsq
    "dial_timeout": "connect_timeout",
    "read_timeout": "a connection without a frame for twice 'heartbeat_interval' is dead",
    "write_timeout": "publish_timeout",
    "lookupd_poll_timeout": _LOOKUPD_TIMES,
    "skip_lookupd_authorization": "'lookupd_authorization' is sent only if you set it",
    "default_requeue_delay": "requeue_delay",
    "tls_config": "tls",
    "tls_root_ca_file": "tls_ca_file",
    "tls_cert": "tls_cert_file",
    "tls_key": "tls_key_file",
    "tls_insecure_skip_verify": "it is 'tls_verify', with the opposite meaning",
    "tls_min_version": "set it on an ssl.SSLContext and give that as 'tls'",
    # nsqjs
    "message_timeout": "msg_timeout",
    "idle_timeout": "a connection without a frame for twice 'heartbeat_interval' is dead",
    "tls_verification": "tls_verify",
    "key": "tls_key_file",
    "cert": "tls_cert_file",
    "ca": "tls_ca_file",
    # ansq
    "consumer_max_in_flight": "max_in_flight",
    "on_message": "handler",
    "on_exception": "on_giving_up",
    "auto_reconnect": "a lost connection is always made anew",
    "connection_options": "options",
    "features": "options",
    "feature_negotiation": "options",
    "debug": "the log is that of Python's logging, 'gnsqsync' and below",
    # Celery, dramatiq, RQ, huey
    "max_retries": "'max_attempts' counts the first try, too: give one more",
    "retries": "'max_attempts' counts the first try, too: give one more",
    "retry": "'max_attempts' counts the first try, too, and 'requeue_delay' is the pause",
    "default_retry_delay": "requeue_delay",
    "retry_delay": "requeue_delay",
    "retry_backoff": "'requeue_delay' grows with the attempts by itself",
    "min_backoff": "requeue_delay",
    "retry_backoff_max": "max_requeue_delay",
    "max_backoff": "max_requeue_delay",
    "retry_jitter": "a failed message always comes up to a tenth later, by chance",
    "jitter": "a failed message always comes up to a tenth later, by chance",
    "autoretry_for": "retry_on",
    "retry_when": "retry_on",
    "retry_for": "retry_on",
    "dont_autoretry_for": "reject_on",
    "throws": "reject_on",
    "soft_time_limit": "time_limit",
    "hard_time_limit": "it is --hard-time-limit of the commands that consume",
    "task_time_limit": "time_limit",
    "job_timeout": "time_limit",
    "default_timeout": "time_limit",
    "visibility_timeout": "msg_timeout",
    "ack_timeout": "msg_timeout",
    "expires": "'max_age' with 'on_expired'",
    "ttl": "'max_age' with 'on_expired'",
    "delay": _PUBLISH_LATER,
    "defer": _PUBLISH_LATER,
    "countdown": _PUBLISH_LATER,
    "eta": _PUBLISH_LATER,
    "acks_late": _ALWAYS_LATE,
    "task_acks_late": _ALWAYS_LATE,
    "auto_ack": _ALWAYS_LATE,
    "reject_on_worker_lost": _ALWAYS_LATE,
    "ignore_result": _NO_RESULTS,
    "result_ttl": _NO_RESULTS,
    "store_results": _NO_RESULTS,
    "result_backend": _NO_RESULTS,
    "bind": "the message is the handler's argument, and message.attempts counts the tries",
    "priority": "NSQ has no priorities; give each of them a topic",
    "on_failure": "on_giving_up",
    "on_retry_exhausted": "on_giving_up",
    "failure_ttl": "'dead_letter_topic' keeps what has failed",
    "dead_letter_queue": "dead_letter_topic",
    "max_tasks_per_child": "it is --max-messages of the commands that consume",
    "worker_max_tasks_per_child": "it is --max-messages of the commands that consume",
    "task_always_eager": "it is the backend 'eager' of the settings, for tests",
    "always_eager": "it is the backend 'eager' of the settings, for tests",
    "serializer": "a handler's body=Type checks and decodes bodies",
    "compression": "'snappy' or 'deflate'",
    "worker_concurrency": "concurrency",
    "workers": "concurrency",
    "threads": "concurrency",
    "prefetch": "max_in_flight",
    "prefetch_count": "max_in_flight",
    "prefetch_multiplier": "max_in_flight",
    "worker_prefetch_multiplier": "max_in_flight",
    "queue": "a queue is a topic and a channel of it",
    "queue_name": "a queue is a topic and a channel of it",
    "group": "channel",
    "group_id": "channel",
    "broker": _PLACES,
    "broker_url": _PLACES,
    "host": _PLACES,
    "hosts": _PLACES,
    "port": _PLACES,
    "nsqd": "nsqd_tcp_addresses",
    "lookupd": "lookupd_http_addresses",
    "nsqlookupd": "lookupd_http_addresses",
    "secret": "auth_secret",  # nosec B105 - the name of an option
    "callback": "handler",
    "func": "handler",
    # Python's ssl
    "ssl": "tls",
    "ca_certs": "tls_ca_file",
    "certfile": "tls_cert_file",
    "keyfile": "tls_key_file",
    "cert_reqs": "tls_verify",
}
# The same in a call that publishes, which has a topic and no channel: of an outbox, a schedule, the
# HTTP API and ``gnsqsync pub``. A Writer's own publishes check no names.
_PUBLISHING: Mapping[str, str] = {
    **dict.fromkeys(
        ("delay", "countdown", "delay_ms", "delay_time", "delay_seconds", "defer_by", "deliver_in"),
        "it is 'defer', in seconds",
    ),
    "eta": "it is 'defer', in seconds from now",
    **dict.fromkeys(("message", "msg", "data", "payload", "value", "content"), "body"),
    **dict.fromkeys(("messages", "msgs", "batch"), "bodies"),
    **dict.fromkeys(("topic_name", "queue", "queue_name", "routing_key", "subject"), "topic"),
    **dict.fromkeys(("properties", "attributes", "metadata", "header"), "headers"),
    **dict.fromkeys(("publish_timeout", "write_timeout", "request_timeout"), "timeout"),
    "key": "a message's key is one of its headers={'key': ...}",
    **dict.fromkeys(("message_id", "msg_id"), "a message's key is one of its headers={'key': ...}"),
    **dict.fromkeys(("expires", "ttl", "ttl_ms"), "the Reader has 'max_age' with 'on_expired'"),
    "alias": "only publish() of gnsqsync.django has an 'alias'",
    "serializer": "a body is bytes or a str; json.dumps() makes a str",
    "exchange": "a topic delivers each message to all of its channels",
    "partition": "a topic has no partitions; 'lanes' of the Reader keep the order of a key",
}
# The same in Requeue(), requeue() of a message, and batches() of a Reader.
_REQUEUING: Mapping[str, str] = {
    **dict.fromkeys(("countdown", "seconds", "wait", "retry_delay", "requeue_delay"), "delay"),
    **dict.fromkeys(("timeout", "defer"), "delay"),
    **dict.fromkeys(("time_ms", "delay_ms", "timeout_ms"), "it is 'delay', in seconds"),
    "eta": "it is 'delay', in seconds from now",
    **dict.fromkeys(("max_retries", "max_tries"), "the Reader has 'max_attempts'"),
    **dict.fromkeys(("exc", "reason"), "a reason is the cause: raise Requeue(...) from error"),
}
_BATCHING: Mapping[str, str] = {
    **dict.fromkeys(("size", "batch_size", "max_size", "count", "limit"), "max_messages"),
    **dict.fromkeys(("max_records", "num_messages"), "max_messages"),
    **dict.fromkeys(("timeout", "wait", "wait_time", "seconds", "interval"), "max_wait"),
    **dict.fromkeys(("timeout_ms", "time_ms"), "it is 'max_wait', in seconds"),
    "idle_timeout": "max_idle",
}
# Names that tell a call by its parameters -> what foreign names mean in this call.
_OF_CALLS: Sequence[tuple[set[str], Mapping[str, str]]] = (
    ({"max_messages", "max_wait"}, _BATCHING),
    ({"delay", "backoff"}, _REQUEUING),
    ({"body"}, _PUBLISHING),
    ({"bodies"}, _PUBLISHING),
    ({"defer"}, _PUBLISHING),
)
# Seams between words in maxAttempts, nsqdTCPAddresses and TLSConfig.
_SEAMS = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


def right_name(word: str) -> str:
    """Return the word in our spelling of options; for a foreign name, its name here."""
    plain = _plain(word)
    found = _ELSEWHERE.get(plain, plain)
    return found if found.isidentifier() else plain


def _plain(word: str) -> str:
    return _SEAMS.sub("_", word.strip().lstrip("-").replace("-", "_")).lower()


def _of_call(known: set[str]) -> Mapping[str, str]:
    """Return the foreign names of the call that has these parameters."""
    if "channel" in known:
        return {}
    return next((table for names, table in _OF_CALLS if names <= known), {})


def meant(word: str, known: Iterable[str]) -> str:
    """Return the end of a sentence about the unknown option ``word``; "" without an idea."""
    known = set(known)
    name = right_name(word)
    if name in known:
        return f"did you mean {name!r}?"
    told = _of_call(known).get(_plain(word), "")
    if told in known:
        return f"did you mean {told!r}?"
    if told and not told.isidentifier():
        return told
    if name in _ELSEWHERE:
        return _ELSEWHERE[name]
    if name in _ELSEWHERE.values():
        return f"{name!r} is an option of something else"
    close = did_you_mean(name, known)
    return "" if close is None else f"did you mean {close!r}?"


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that is most similar to ``word``, or None."""
    import difflib

    close = difflib.get_close_matches(word, sorted(known), 1, 0.5)
    return close[0] if close else None


def sentence(text: str) -> str:
    """Return the end of a sentence as a whole sentence."""
    end = "" if text.endswith("?") else "."
    return f"{text[:1].upper()}{text[1:]}{end}"
