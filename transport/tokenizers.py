"""Vocabularies for renderers of token ids: found on this machine, their hash checked, loaded in a thread."""

import gzip
import hashlib
import os
import tempfile
from base64 import b64decode
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import tiktoken
import trio
from attrs import field, frozen

from turntape.core.harmony import FIRST_SPECIAL

SHA256 = "446a9538cb6c348e3516120d7c08b09f57c36495e2acfffe59a5bf8b0cfb1a2d"
"""Of o200k_base.tiktoken. Source: tiktoken_ext/openai_public.py."""

CACHE_KEY = "fb374d419588a4632f3f557e76b4b70aebbca790"
"""Its name in tiktoken's cache: SHA-1 of the URL it comes from."""

N_SPECIAL = 1091
"""Ids up to 201088: the markers of harmony and what is reserved."""

CURE = "pip install 'turntape[tokens]', or point TIKTOKEN_CACHE_DIR at a cache of tiktoken's that has it."


class NoVocabulary(Exception):
    """The vocabulary is not on this machine. The text says how to get it."""


@frozen(eq=False)
class Vocabulary:
    """A tiktoken encoding as a ``Tokenizer``."""

    encoding: tiktoken.Encoding = field(repr=False)

    def encode(self, text: str) -> Sequence[int]:
        return self.encoding.encode_ordinary(text)

    def decode(self, ids: Sequence[int]) -> bytes:
        return self.encoding.decode_bytes(ids)


async def load_harmony() -> Vocabulary:
    """o200k_harmony, the vocabulary of gpt-oss. Nothing is downloaded. Raises ``NoVocabulary``."""
    return await trio.to_thread.run_sync(read_harmony)


@cache
def read_harmony() -> Vocabulary:
    """The same, for a thread: it takes half a second, once."""
    content = _from_cache() or _from_package()
    ranks = {b64decode(token): int(rank) for token, rank in (line.split() for line in content.splitlines() if line)}
    special = {f"<|special_{token}|>": token for token in range(FIRST_SPECIAL, FIRST_SPECIAL + N_SPECIAL)}
    return Vocabulary(
        tiktoken.Encoding("o200k_harmony", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens=special)
    )


def _is_whole(content: bytes) -> bool:
    return hashlib.sha256(content).hexdigest() == SHA256


def _from_cache() -> bytes | None:
    """From tiktoken's cache; None unless it is there and whole."""
    folder = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    try:
        content = Path(folder or Path(tempfile.gettempdir(), "data-gym-cache"), CACHE_KEY).read_bytes()
    except OSError:
        return None
    return content if _is_whole(content) else None


def _from_package() -> bytes:
    """From the files of bpe-openai."""
    spec = find_spec("bpe_openai")  # found and not imported: importing it loads every vocabulary it has
    try:
        if spec is None or spec.origin is None:
            raise FileNotFoundError
        packed = Path(spec.origin).with_name("data").joinpath("o200k_base.tiktoken.gz").read_bytes()
    except OSError:
        raise NoVocabulary(f"The vocabulary o200k_base is not on this machine: {CURE}") from None
    content = gzip.decompress(packed)
    if not _is_whole(content):
        raise NoVocabulary(f"The vocabulary o200k_base of the package bpe-openai has been changed: {CURE}")
    return content


PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
    r"|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n/]*"
    r"|\s*[\r\n]+"
    r"|\s+(?!\S)"
    r"|\s+"
)
"""How text is cut before it is encoded. Source: o200k_base in tiktoken_ext/openai_public.py."""
