"""The head of a GGUF file, as small as a test wants it."""

import struct


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def entry(key: str, text: str) -> bytes:
    """One entry of the table whose value is a string."""
    return string(key) + struct.pack("<I", 8) + string(text)


def gguf(*entries: bytes, n: int | None = None) -> bytes:
    """A file of nothing but ``entries``; ``n`` says how many it claims to have."""
    return b"GGUF" + struct.pack("<IQQ", 3, 0, len(entries) if n is None else n) + b"".join(entries)


LLAMA = entry("general.architecture", "llama")
