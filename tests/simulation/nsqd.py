"""nsqd on the simulated network: the embedded one's broker and sessions, and a shell around them.

The shell is what ``gnsqsync.embedded.connection`` and ``server`` are for real sockets.
"""

from __future__ import annotations

import io
import random
import struct
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from gnsqsync.daemon.golog import Log
from gnsqsync.daemon.names import is_ephemeral
from gnsqsync.embedded.broker import Broker
from gnsqsync.embedded.disk.queue import DiskQueue, Limits
from gnsqsync.embedded.disk.records import SHORTEST
from gnsqsync.embedded.options import NsqdOptions
from gnsqsync.embedded.session import Peer, Session
from tests.simulation.disk import Disk
from tests.simulation.network import End, Network
from tests.simulation.scheduler import EPOCH, Scheduler, Timer

if TYPE_CHECKING:
    from tests.simulation.lookupd import SimLookupd

__all__ = ["FLOOD_BYTES", "SimNsqd"]

_MAGIC = b"  V2"
FLOOD_BYTES = 500_000
_FLOOD = bytes(FLOOD_BYTES)
# How long after an error the client's further bytes are read and thrown away.
_DRAIN_SECONDS = 0.5


class _Client:
    """One connection. ``readable`` and ``writable`` are called by the network."""

    def __init__(self, nsqd: SimNsqd, end: End) -> None:
        self.nsqd = nsqd
        self.end = end
        self._began: bytes | None = b""
        self.session = Session(
            nsqd.broker,
            Peer(end.peer.host, end.peer.address),
            on_output=lambda: nsqd.flush_soon(self),
            on_identified=self._restart_heartbeat,
        )
        self._unsent = b""
        self._unsent_since = 0.0
        self._heartbeat: Timer | None = None
        self._period = 0.0
        self._line_began = nsqd.now()
        self._commands = -1
        self._deadline: Timer | None = None
        self._is_over = False
        end.handler = self
        self._restart_heartbeat()
        self._watch()

    # -- in --------------------------------------------------------------------------------------

    def readable(self) -> None:
        if self.nsqd.is_frozen:
            return
        end, session = self.end, self.session
        while not session.is_backlogged and (data := end.take()):
            if not session.closed:
                self._feed(data)
        if end.is_reset:
            self.over()
        elif end.has_eof and not end.received:
            session.input_ended()
            self.nsqd.flush_soon(self)

    def _feed(self, data: bytes) -> None:
        if self._began is not None:
            self._began += data
            if len(self._began) < len(_MAGIC):
                return
            data, self._began = self._began[len(_MAGIC) :], None
        if data:
            self.session.receive(data)
        if self.session.commands != self._commands:
            self._commands = self.session.commands
            self._line_began = self.nsqd.now()
        if self.session.closed:
            self.nsqd.flush_soon(self)

    # -- out -------------------------------------------------------------------------------------

    def writable(self) -> None:
        if not self.nsqd.is_frozen:
            self.flush()

    def flush(self) -> None:
        if self._is_over:
            return
        session, end = self.session, self.end
        was_backlogged = session.is_backlogged
        data = self._unsent + session.take_output()
        try:
            sent = end.send(data) if data else 0
        except OSError:
            self.over()
            return
        if (sent and self._unsent) or not self._unsent:
            self._unsent_since = self.nsqd.now()
        self._unsent = data[sent:]
        session.unsent = len(self._unsent)
        if not self._unsent:
            session.owes_answer = False
            if session.closed:
                self._end()
            elif was_backlogged:
                session.wake_channel()
                self.readable()

    def send_raw(self, data: bytes) -> None:
        """Between two frames, if there is no rest of one."""
        if not self._is_over and not self._unsent:
            self._unsent = data
            self.flush()
            if b"E_WHAT" in data:
                # After an error of which the client knows nothing it reads no more, as nsqd.
                self._end()

    def flood(self, frames: int) -> None:
        """As of the nsqd. Its own answers come between the messages."""
        if self._is_over or not frames:
            return
        if not self._unsent:
            id = b"f%015x" % frames
            self._unsent = struct.pack(">iiqH16s", 30 + len(_FLOOD), 2, 0, 1, id) + _FLOOD
            frames -= 1
        self.flush()
        self.nsqd.after(0.001, lambda: self.flood(frames))

    # -- time ------------------------------------------------------------------------------------

    def _restart_heartbeat(self) -> None:
        if self.session.heartbeat_period != self._period:
            self._period = self.session.heartbeat_period
            self._beat_later()

    def _beat_later(self) -> None:
        if self._heartbeat is not None:
            self._heartbeat.cancel()
            self._heartbeat = None
        if self._period and not self._is_over:
            self._heartbeat = self.nsqd.after(self._period, self._beat)

    def _beat(self) -> None:
        if not self.nsqd.is_frozen:
            self.session.heartbeat()
        self._beat_later()

    def _watch(self) -> None:
        """End it when no command comes, or nothing is taken, for too long."""
        if self._is_over:
            return
        interval = self.session.settings.heartbeat_interval or 60.0
        now = self.nsqd.now()
        if self._unsent and now - self._unsent_since > interval:
            self.over()
            return
        if self.session.settings.heartbeat_interval and now - self._line_began >= 2 * interval:
            self.session.input_ended()
            self.nsqd.flush_soon(self)
        self._deadline = self.nsqd.after(interval / 2, self._watch)

    # -- the end ---------------------------------------------------------------------------------

    def _end(self) -> None:
        """The last frame has left."""
        if not self._is_over:
            self._forget()
            self.end.end_sending()
            self.nsqd.after(_DRAIN_SECONDS, self._close)

    def _close(self) -> None:
        self.end.received.clear()
        self.end.size = 0
        self.end.close()

    def over(self) -> None:
        """At once, without a frame."""
        self._forget()
        self.end.close()

    def _forget(self) -> None:
        self._is_over = True
        self.session.close()
        for timer in (self._heartbeat, self._deadline):
            if timer is not None:
                timer.cancel()
        self.nsqd.clients.pop(self, None)


class SimNsqd:
    """One nsqd. It is started, stopped, killed, frozen; its disk outlives it.

    ``rate``: how fast its clock goes, 1.0 is right. ``wall_offset``: how wrong the date is.
    ``work``: seconds that it takes to answer.
    """

    def __init__(
        self,
        name: str,
        port: int,
        scheduler: Scheduler,
        network: Network,
        rng: random.Random,
        options: NsqdOptions,
        log: io.TextIOBase,
        lookupds: list[SimLookupd],
    ) -> None:
        self.name = name
        self.port = port
        self.address = f"{name}:{port}"
        self.options = options
        # Of the ids of messages: each nsqd has another one.
        self.node_id = int(name[1:])
        self.scheduler = scheduler
        self.network = network
        self.rng = rng
        self.disk: Disk | None = None
        self.rate = 1.0
        self.wall_offset = 0.0
        self.work = 50e-6
        self.is_up = False
        self.is_frozen = False
        self.lookupds = lookupds
        self.clients: dict[_Client, None] = {}
        self.starts = 0
        # topics and their channels, with what is paused: nsqd.dat
        self._names: dict[str, tuple[bool, dict[str, bool]]] = {}
        self._log = Log(f"[{name}] ", "info", log)
        self._unflushed: deque[_Client] = deque()
        self._scheduled = False
        self._alarm: Timer | None = None
        self._peers: list[_LookupPeer] = []
        self.broker: Broker

    # -- its clock -------------------------------------------------------------------------------

    def now(self) -> float:
        return self.scheduler.now * self.rate

    def wall_ns(self) -> int:
        seconds = self.scheduler.now - 1000.0 + self.wall_offset
        return int(EPOCH * 1e9) + int(seconds * 1e9)

    def after(self, seconds: float, call: Callable[[], object]) -> Timer:
        """By its own clock; not after its end."""
        start = self.starts

        def due() -> None:
            if self.starts == start and self.is_up:
                call()

        return self.scheduler.after(seconds / self.rate, due)

    # -- start and end ---------------------------------------------------------------------------

    def start(self) -> None:
        assert not self.is_up
        self.starts += 1
        self.is_up = True
        self.is_frozen = False
        # Saving has woken the schedule of the broker before.
        self._scheduled = False
        self._alarm = None
        self.network.off.pop(self.name, None)
        broker = self.broker = Broker(
            self.options,
            node_id=self.node_id,
            now=self.now,
            wall_ns=self.wall_ns,
            rng=random.Random(self.rng.random()),
        )
        broker.schedule.on_work = self._schedule
        broker.schedule.on_plan = self._set_alarm
        broker.schedule.nsqd = self  # type: ignore[attr-defined]
        if self.disk is not None:
            broker.open_queue = self._open_queue
            self._load()
        broker.listeners.append(self._names_changed)
        self._peers = [_LookupPeer(self, lookupd) for lookupd in self.lookupds]
        broker.known_channels = self._known_channels
        for peer in self._peers:
            peer.beat()
        self.network.listeners[self.name, self.port] = self._accept
        self._log.info("TCP: listening on %s", self.address)

    def stop(self) -> None:
        """A clean one: queues are saved, connections closed without a frame."""
        if not self.is_up:
            return
        self._log.info("stops")
        self._down()
        if self.disk is None:
            return
        for topic in self.broker.topics.values():
            for channel in topic.channels.values():
                if channel.backlog is not None:
                    channel.save(channel.unsaved())
            if topic.backlog is not None:
                topic.save(topic.queue)

    def kill(self) -> None:
        """As by kill -9: what was written is there, what was in memory is not."""
        if self.is_up:
            self._log.info("is killed")
            self._down()

    def power_off(self) -> None:
        """What was not synced is gone, too; and nobody is told."""
        if self.is_up:
            self._log.info("loses power")
            for end in self.network.ends_of(self.name):
                end.vanish()
            self.network.off[self.name] = None
            self._down()
            if self.disk is not None:
                self.disk.lose_unsynced()

    def _down(self) -> None:
        self.network.listeners.pop((self.name, self.port), None)
        for client in list(self.clients):
            client.over()
        for peer in self._peers:
            peer.close()
        for end in self.network.ends_of(self.name):
            end.close()
        self.is_up = False
        self._unflushed.clear()
        if self._alarm is not None:
            self._alarm.cancel()

    def freeze(self, seconds: float) -> None:
        """SIGSTOP, and SIGCONT after so long: the kernel goes on meanwhile."""
        if self.is_up and not self.is_frozen:
            self.is_frozen = True
            start = self.starts

            def thaw() -> None:
                if self.is_up and self.starts == start:
                    self.is_frozen = False
                    self._schedule()
                    for client in list(self.clients):
                        client.readable()
                        client.flush()

            self.scheduler.after(seconds, thaw)

    def send_garbage(self, number: float) -> None:
        """What no nsqd sends, to each client."""
        lies = (
            struct.pack(">ii", 6, 9) + b"??",
            struct.pack(">ii", 0x7FFFFFFF, 0),
            struct.pack(">ii", -5, 0),
            struct.pack(">ii", 10, 2) + b"short.",
            struct.pack(">ii", 4 + 9, 1) + b"E_WHAT ??",
        )
        for client in list(self.clients):
            client.send_raw(lies[int(number * len(lies))])

    def flood(self, frames: int) -> None:
        """Send each consumer so many messages of FLOOD_BYTES, whatever its RDY is."""
        for client in list(self.clients):
            if client.session.channel is not None:
                client.flood(frames)

    # -- its folder ------------------------------------------------------------------------------

    def _open_queue(self, name: str) -> DiskQueue:
        assert self.disk is not None
        options = self.options
        limits = Limits(
            max_bytes_per_file=options.max_bytes_per_file,
            sync_every=options.sync_every,
            sync_timeout=options.sync_timeout,
            longest=SHORTEST + options.max_msg_size,
        )
        return DiskQueue(name, self.disk, limits, self.now, self._log)

    def _load(self) -> None:
        for name, (paused, channels) in self._names.items():
            topic = self.broker.topic(name)
            topic.pause(True)
            for channel, channel_paused in channels.items():
                topic.channel(channel).pause(channel_paused)
            topic.pause(paused)

    def _names_changed(self, event: str, topic: str, channel: str | None) -> None:
        self._names = {
            topic.name: (
                topic.paused,
                {c.name: c.paused for c in topic.channels.values() if not c.ephemeral},
            )
            for topic in self.broker.topics.values()
            if not topic.ephemeral
        }
        for peer in self._peers:
            peer.names_changed(event, topic, channel)

    def _known_channels(self, topic: str) -> list[str]:
        found: dict[str, None] = {}
        for peer in self._peers:
            found |= dict.fromkeys(peer.channels(topic))
        return [name for name in found if not is_ephemeral(name)]

    # -- clients ---------------------------------------------------------------------------------

    def _accept(self, end: End) -> None:
        self.clients[_Client(self, end)] = None

    def flush_soon(self, client: _Client) -> None:
        self._unflushed.append(client)
        self._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self.after(self.work * (0.5 + self.rng.random()), self._settle)

    def _settle(self) -> None:
        self._scheduled = False
        if self.is_frozen:
            return
        self.broker.schedule.settle()
        while self._unflushed:
            self._unflushed.popleft().flush()

    def _set_alarm(self, when: float) -> None:
        if self._alarm is not None:
            self._alarm.cancel()
        self._alarm = self.after(when - self.now(), self._on_alarm)

    def _on_alarm(self) -> None:
        if self.is_frozen:
            self._alarm = self.after(0.1, self._on_alarm)
            return
        self.broker.schedule.expire()
        when = self.broker.schedule.next_at()
        if when is not None:
            self._set_alarm(when)


class _LookupPeer:
    """Tells one nsqlookupd the names, and that it lives; connects anew with the next word."""

    def __init__(self, nsqd: SimNsqd, lookupd: SimLookupd) -> None:
        self._nsqd = nsqd
        self._lookupd = lookupd
        self._end: End | None = None

    def beat(self) -> None:
        self._say("PING\n")
        self._nsqd.after(15.0, self.beat)

    def names_changed(self, event: str, topic: str, channel: str | None) -> None:
        verb = "UNREGISTER" if event.endswith("deleted") else "REGISTER"
        self._say(f"{verb} {topic} {channel}\n" if channel else f"{verb} {topic}\n")

    def channels(self, topic: str) -> list[str]:
        """What it knows, if it can be asked now."""
        end = self._end
        if end is None or end.has_eof or end.is_reset or self._nsqd.is_frozen:
            return []
        if self._nsqd.network.is_cut(self._nsqd.name, self._lookupd.name):
            return []
        return self._lookupd.channels(topic)

    def close(self) -> None:
        if self._end is not None:
            self._end.close()
            self._end = None

    def _say(self, line: str) -> None:
        end = self._end
        try:
            if end is None or end.has_eof or end.is_reset:
                self._connect()
            elif end.send(line.encode()) < len(line):
                self.close()
        except OSError:
            self.close()

    def _connect(self) -> None:
        self.close()
        nsqd = self._nsqd
        self._end = nsqd.network.dial(nsqd.name, (self._lookupd.name, self._lookupd.tcp_port))
        if self._end is None:
            return
        self._end.handler = self
        self._end.send(self._lookupd.greeting(nsqd.name, nsqd.port))
        for topic in nsqd.broker.topics.values():
            for line in [f"{topic.name} {name}" for name in topic.channels] or [topic.name]:
                self._end.send(f"REGISTER {line}\n".encode())

    def readable(self) -> None:
        if self._end is not None:
            self._end.take()

    def writable(self) -> None:
        """Its answers and our lines are short."""
