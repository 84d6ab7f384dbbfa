"""The bytes of one TCP V2 connection: command lines and bodies in, frames out, and the close.

Knows where a command ends in the stream (docs/protocol/commands#command-lines) and that a fatal
error ends the stream. session.py knows what the commands mean. No I/O.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from gnsqsync.embedded.identify import Fatal
from gnsqsync.wire.frames import encode_error, encode_response
from gnsqsync.wire.pieces import Pieces

__all__ = ["OK_FRAME", "Command", "CommandStream", "insufficient"]

Command: TypeAlias = "Callable[[list[bytes], bytes, int], int]"
"""(words of the line, data, offset after the line) -> offset after the command.

A negative result means that the command is incomplete: its value is minus the needed length.
"""

# Bytes of a line with its \n that fit nsqd's read buffer. A longer line closes the connection.
_MAX_LINE = 16384
# Unsent bytes from which on a client is not served further.
_MAX_BACKLOG = 1024 * 1024

OK_FRAME = encode_response(b"OK")


def insufficient(command: bytes, word: bytes = b"parameters") -> Fatal:
    """Return the error for a line with too few words."""
    return Fatal(b"E_INVALID", b"%s insufficient number of %s" % (command, word))


class CommandStream:
    """A parser that ``receive`` feeds. ``on_output`` is called when ``take_output`` has bytes.

    ``closed``: True after the end; the owner writes the output, then closes. ``upgrades``: the
    layers that the owner adds, in order, after it has written the output. ``commands``: number of
    whole commands (each starts the read deadline anew).
    """

    def __init__(self, commands: dict[bytes, Command], on_output: Callable[[], None]) -> None:
        self._commands = commands
        self._on_output = on_output
        self.upgrades: list[tuple[str, int]] = []
        self.closed: bool = False
        self.commands: int = 0
        # Bytes that were taken from the output and that the kernel has not taken; set by the owner.
        self.unsent = 0
        # True while an answer is unsent. The owner clears the flag when all bytes are sent.
        self.owes_answer: bool = False
        self._output: list[bytes] = []
        self._output_size = 0
        # Bytes at the end of the output that wait for the next frame and leave with it.
        self._held = 0
        # The bytes of an incomplete command.
        self._pieces = Pieces()
        # The error if the input ends here; None between commands.
        self._missing: Fatal | None = None
        # Reader of a body that arrives in pieces, set by the command; None outside of such a body.
        self._continue: Callable[[bytes, int], int] | None = None

    # -- in ----------------------------------------------------------------------------------------

    def receive(self, data: bytes) -> None:
        """Execute every command that ``data`` completes. Stop at an upgrade or when closed."""
        if self._pieces.kept:
            whole = self._pieces.add(data)
            if whole is None:
                return
            data = whole
        end = len(data)
        offset = 0
        commands = self._commands
        try:
            while offset < end and not self.closed:
                if self._continue is not None:
                    stop = self._continue(data, offset)
                else:
                    newline = data.find(b"\n", offset, offset + _MAX_LINE)
                    if newline < 0:
                        if end - offset >= _MAX_LINE:
                            self.close()
                            return
                        self._pieces.need = 0
                        self._missing = None
                        break
                    line = data[offset:newline]
                    if line.endswith(b"\r"):
                        line = line[:-1]
                    params = line.split(b" ")
                    self._check_line(params)
                    command = commands.get(params[0])
                    if command is None:
                        raise Fatal(b"E_INVALID", b"invalid command " + params[0])
                    stop = command(params, data, newline + 1)
                if stop < 0:
                    self._pieces.need = -stop - offset
                    break
                offset = stop
                if self._continue is None:
                    self.commands += 1
                if self.upgrades:
                    return  # nsqd drops what it has read ahead at an upgrade
        except Fatal as error:
            self._fail(error)
            return
        if offset < end and not self.closed:
            self._pieces.begin(data[offset:])

    def _check_line(self, params: list[bytes]) -> None:
        """Check a line before it is parsed. Raise Fatal to refuse it."""

    def _incomplete(self, stop: int, code: bytes, text: bytes) -> int:
        self._missing = Fatal(code, text)
        return -stop

    def input_ended(self) -> None:
        """Handle EOF or a missed read deadline. nsqd sends an error only inside of a body."""
        if not self.closed:
            if (self._pieces.kept or self._continue is not None) and self._missing is not None:
                self._fail(self._missing)
            self.close()

    # -- out ---------------------------------------------------------------------------------------

    @property
    def is_backlogged(self) -> bool:
        """True while the peer reads too slowly to be served further."""
        return self._output_size + self.unsent >= _MAX_BACKLOG

    def take_output(self) -> bytes:
        """Return the bytes to write now, and remove them here."""
        data = b"".join(self._output)
        held = self._held
        self._drop_output()
        if not held:
            return data
        self._output.append(data[-held:])
        self._output_size = self._held = held
        return data[:-held]

    def _drop_output(self) -> None:
        self._output.clear()
        self._output_size = self._held = 0

    def _write(self, frame: bytes) -> None:
        self.owes_answer = True
        self._append(frame)

    def _append(self, frame: bytes) -> None:
        if self._output_size == self._held:
            self._on_output()
        self._held = 0
        self._output.append(frame)
        self._output_size += len(frame)

    # -- the end -----------------------------------------------------------------------------------

    def close(self) -> None:
        """End the connection. The owner still writes the output. Idempotent."""
        self.closed = True
        self._pieces = Pieces()
        self._continue = None

    def _fail(self, error: Fatal) -> None:
        self._write(encode_error(error.frame))
        self.close()
