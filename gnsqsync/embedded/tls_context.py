"""nsqd's TLS flags as an SSLContext. Knows certificates and versions. Knows no socket."""

from __future__ import annotations

import ssl
from typing import TypeVar

from gnsqsync.daemon.options import OptionsError
from gnsqsync.embedded.options import NsqdOptions

__all__ = ["cipher_name", "make_context"]

_VERSIONS = {
    "tls1.0": ssl.TLSVersion.TLSv1,
    "tls1.1": ssl.TLSVersion.TLSv1_1,
    "tls1.2": ssl.TLSVersion.TLSv1_2,
    "tls1.3": ssl.TLSVersion.TLSv1_3,
}

# Cipher suites that nsqd has names for, by their IANA number.
_CIPHERS = {
    0x0005: "TLS_RSA_WITH_RC4_128_SHA",
    0x000A: "TLS_RSA_WITH_3DES_EDE_CBC_SHA",
    0x002F: "TLS_RSA_WITH_AES_128_CBC_SHA",
    0x0035: "TLS_RSA_WITH_AES_256_CBC_SHA",
    0xC007: "TLS_ECDHE_ECDSA_WITH_RC4_128_SHA",
    0xC009: "TLS_ECDHE_ECDSA_WITH_AES_128_CBC_SHA",
    0xC00A: "TLS_ECDHE_ECDSA_WITH_AES_256_CBC_SHA",
    0xC011: "TLS_ECDHE_RSA_WITH_RC4_128_SHA",
    0xC012: "TLS_ECDHE_RSA_WITH_3DES_EDE_CBC_SHA",
    0xC013: "TLS_ECDHE_RSA_WITH_AES_128_CBC_SHA",
    0xC014: "TLS_ECDHE_RSA_WITH_AES_256_CBC_SHA",
    0xC02B: "TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256",
    0xC02F: "TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
}

_Context = TypeVar("_Context", bound=ssl.SSLContext)


def make_context(options: NsqdOptions, kind: type[_Context]) -> _Context | None:
    """Return the server's context, of class ``kind``, or None without a certificate.

    OptionsError if a file cannot be loaded, or for a policy that Python's ssl does not support.
    """
    if not options.tls_cert and not options.tls_key:
        # nsqd uses the CA file as a client of its auth servers, too, so the file is checked.
        _load_ca(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), options.tls_root_ca_file, "client TLS")
        return None
    context = kind(ssl.PROTOCOL_TLS_SERVER)
    for path in (options.tls_cert, options.tls_key):
        _check_readable(path, "TLS")
    try:
        # Without a password argument OpenSSL would ask for one on the terminal.
        context.load_cert_chain(options.tls_cert, options.tls_key, password="")  # nosec B106
    except ssl.SSLError as error:
        raise OptionsError(f"failed to build TLS config - {error}") from None
    _load_ca(context, options.tls_root_ca_file, "TLS")
    # "tls1.0" is nsqd's default. It does not enable versions that OpenSSL was built or configured
    # to refuse.
    if options.tls_min_version in ("tls1.2", "tls1.3"):
        context.minimum_version = _VERSIONS[options.tls_min_version]
    # nsqd ignores any other policy.
    if options.tls_client_auth_policy in ("require", "require-verify"):
        if not options.tls_root_ca_file:
            if options.tls_client_auth_policy == "require":
                raise OptionsError(
                    "--tls-client-auth-policy=require needs --tls-root-ca-file in the embedded"
                    " nsqd: Python's ssl cannot take a client certificate without verifying it"
                )
            context.load_default_certs(ssl.Purpose.CLIENT_AUTH)
        context.verify_mode = ssl.CERT_REQUIRED
    return context


def _check_readable(path: str, what: str) -> None:
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        reason = f"open {path}: {(error.strerror or str(error)).lower()}"
        raise OptionsError(f"failed to build {what} config - {reason}") from None


def _load_ca(context: ssl.SSLContext, path: str, what: str) -> None:
    if not path:
        return
    _check_readable(path, what)
    try:
        context.load_verify_locations(path)
    except ssl.SSLError:
        reason = "failed to append certificate to pool"
        raise OptionsError(f"failed to build {what} config - {reason}") from None


def cipher_name(context: ssl.SSLContext, name: str | None) -> str:
    """Return the name in nsqd's /stats for a suite of ``context`` that OpenSSL calls ``name``.

    nsqd has no names for the suites of TLS 1.3 and the newer ones of TLS 1.2
    (docs/protocol/nsqd-http#stats).
    """
    for suite in context.get_ciphers():
        if suite["name"] == name:
            number = suite["id"] & 0xFFFF
            return _CIPHERS.get(number, f"Unknown {number}")
    return ""
