"""TLS as bytes in, bytes out, over ssl.MemoryBIO.

Must not know sockets. The options decide which context to use.
"""

from __future__ import annotations

import ssl
from contextlib import AbstractContextManager, nullcontext
from typing import Any

from gnsqsync.errors import ConfigError, ConnectionLost, NegotiationFailed, ProtocolError

__all__ = ["TlsLayer"]

# Bytes of one read of decrypted data.
_READ_SIZE = 65536
# Words in alerts by which the peer refuses our certificate or its absence. With TLS 1.3 they arrive
# only after our side of the handshake is done.
_REFUSALS = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED")


class TlsLayer:
    """TLS of one connection, client or server side. A ``codec.Layer`` once ``done``.

    ``context`` decides about certificates; ``server_hostname`` is the name to verify; ``peer``
    (host:port) is for error texts. One thread may encode while another decodes. ``lock``, a
    reusable context manager, is held over the memory operations only, because OpenSSL does not
    allow two at once. Raises ConfigError if the context checks names and there is no name.
    """

    pending = False  # each decode returns all that arrived

    def __init__(
        self,
        context: ssl.SSLContext,
        *,
        server_hostname: str | None = None,
        server_side: bool = False,
        lock: AbstractContextManager[Any] | None = None,
        peer: str = "",
    ) -> None:
        self._lock: AbstractContextManager[Any] = nullcontext() if lock is None else lock
        self._peer = peer or server_hostname or "the peer"
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        if context.check_hostname and not server_side and not server_hostname:
            # wrap_bio, unlike wrap_socket, would silently check no name at all.
            raise ConfigError(f"TLS has no name to verify {self._peer} by; set tls_server_hostname")
        try:
            self._tls = context.wrap_bio(
                self._incoming,
                self._outgoing,
                server_side=server_side,
                server_hostname=server_hostname,
            )
        except ValueError as error:
            raise ConfigError(
                f"TLS cannot use the name {server_hostname!r} for {self._peer} ({error});"
                " set tls_server_hostname"
            ) from error
        self.done: bool = False
        # True once the peer has ended its side, with a close_notify.
        self._eof = False

    @property
    def eof(self) -> bool:
        """True once the peer ended the TLS stream (close_notify)."""
        return self._eof

    def handshake(self, data: bytes) -> bytes:
        """Take the received bytes (b"" at the start) and return the bytes to send.

        Call it until ``done``. Bytes beyond the handshake come out of ``decode(b"")``. Raises
        NegotiationFailed if a certificate does not verify, or the two sides have nothing in common;
        send what ``close()`` returns even then, so that the peer learns the reason. Raises
        ConnectionLost if nsqd has waited too long.
        """
        with self._lock:
            self._incoming.write(data)
            try:
                self._tls.do_handshake()
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLCertVerificationError as error:
                raise NegotiationFailed(
                    f"the certificate of {self._peer} does not verify: {error.verify_message}"
                ) from error
            except ssl.SSLError as error:
                text = f"the TLS handshake with {self._peer} failed: {_reason(error, data)}"
                # nsqd waits five seconds for the handshake. Either side may have been slow.
                if text.endswith("i/o timeout"):
                    raise ConnectionLost(text) from error
                raise NegotiationFailed(text) from error
            else:
                self.done = True
            return self._outgoing.read()

    def encode(self, data: bytes) -> bytes:
        """Return ``data`` as TLS records, after whatever else TLS has to send.

        Raises ProtocolError if the stream is broken, or was closed by us.
        """
        view = memoryview(data)
        with self._lock:
            try:
                while view:
                    view = view[self._tls.write(view) :]
            except ssl.SSLError as error:
                raise ProtocolError(
                    f"TLS with {self._peer} cannot send: {_reason(error)}"
                ) from error
            return self._outgoing.read()

    def decode(self, data: bytes) -> bytes:
        """Return the application data that ``data`` completes. b"" is normal; see ``eof``.

        Raises ProtocolError if the stream is broken, and NegotiationFailed if the peer refuses our
        certificate, which with TLS 1.3 it does only after the handshake.
        """
        decoded: list[bytes] = []
        with self._lock:
            self._incoming.write(data)
            try:
                while not self._eof:
                    part = self._tls.read(_READ_SIZE)
                    decoded.append(part)
                    self._eof = not part
            except ssl.SSLWantReadError:
                pass
            except ssl.SSLZeroReturnError:
                self._eof = True
            except ssl.SSLError as error:
                text = _reason(error, data)
                if any(word in (error.reason or "") for word in _REFUSALS):
                    raise NegotiationFailed(
                        f"{self._peer} refused our TLS certificate: {text}"
                    ) from error
                raise ProtocolError(f"the TLS stream of {self._peer} is broken: {text}") from error
        return decoded[0] if len(decoded) == 1 else b"".join(decoded)

    def close(self) -> bytes:
        """Return the last bytes: close_notify after a handshake, else the alert with the reason."""
        with self._lock:
            if self.done:
                try:
                    self._tls.unwrap()
                except ssl.SSLError:
                    # The peer's close_notify is not awaited. On a broken stream nothing more can be
                    # sent.
                    pass
            return self._outgoing.read()

    @property
    def version(self) -> str | None:
        """Version such as "TLSv1.3", or None before the handshake."""
        return self._tls.version()

    @property
    def cipher(self) -> str | None:
        """Name of the cipher suite, or None before the handshake."""
        cipher = self._tls.cipher()
        return cipher[0] if cipher else None

    @property
    def peer_common_name(self) -> str:
        """Common name in the peer's verified certificate, or "". nsqd tells it to its auth server
        (docs/protocol/handshake#auth)."""
        certificate: Any = self._tls.getpeercert() if self.done else None
        for names in (certificate or {}).get("subject", ()):
            for key, value in names:
                if key == "commonName":
                    return str(value)
        return ""


def _reason(error: ssl.SSLError, data: bytes = b"") -> str:
    """Return OpenSSL's reason in words, and nsqd's own reason if it came in clear
    (docs/protocol/handshake#tls)."""
    text = (error.reason or str(error)).replace("_", " ").lower()
    start = data.find(b"E_IDENTIFY_FAILED")
    if start >= 0:
        text += f"; nsqd says: {data[start:].decode('utf-8', 'replace')}"
    return text
