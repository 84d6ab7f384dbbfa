"""Returns the headers and the body of what pynsq has in message.body."""

MAGIC = b"\xff\xffNH\x01"


def open_envelope(data):
    if not data.startswith(MAGIC) or len(data) < 8:
        return {}, data
    end = 7 + int.from_bytes(data[5:7], "big")
    if end >= len(data):
        return {}, data
    body = data[end:]
    try:
        parts = data[7:end].decode("utf-8").split("\0")
    except UnicodeDecodeError:
        return {}, body
    headers = dict(zip(parts[::2], parts[1::2], strict=False))
    if "" in headers or 2 * len(headers) != len(parts) or len(parts) > 128:
        return {}, body
    return headers, body
