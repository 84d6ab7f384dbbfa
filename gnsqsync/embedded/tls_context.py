"""nsqd's TLS flags as an SSLContext. Knows certificates and versions; nothing of sockets."""

from __future__ import annotations

import ssl
from typing import TypeVar

from gnsqsync.embedded.options import NsqdOptions, OptionsError

__all__ = ["make_context"]

_VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}

_Context = TypeVar("_Context", bound=ssl.SSLContext)


def make_context(options: NsqdOptions, kind: type[_Context]) -> _Context | None:
    """The server's context, of the class that its sockets need; None without a certificate.

    OptionsError when a file cannot be loaded, or for what Python's ssl cannot do.
    """
    if not options.tls_cert and not options.tls_key:
        return None
    context = kind(ssl.PROTOCOL_TLS_SERVER)
    try:
        # An empty password, since OpenSSL would ask for one on the terminal.
        context.load_cert_chain(options.tls_cert, options.tls_key, password="")  # nosec B106
        if options.tls_root_ca_file:
            context.load_verify_locations(options.tls_root_ca_file)
    except (OSError, ssl.SSLError) as error:
        raise OptionsError(f"failed to build TLS config - {error}") from None
    # "tls1.0" is nsqd's default; what OpenSSL itself was built or configured to refuse stays
    # refused.
    if options.tls_min_version in ("tls1.2", "tls1.3"):
        context.minimum_version = _VERSIONS[options.tls_min_version]
    if options.tls_client_auth_policy:
        if not options.tls_root_ca_file:
            raise OptionsError(
                "--tls-client-auth-policy needs --tls-root-ca-file in the embedded nsqd:"
                " Python's ssl cannot take a client certificate without verifying it"
            )
        context.verify_mode = ssl.CERT_REQUIRED
    return context
