"""What a GGUF file says of its model before anything is loaded: enough to refuse a wrong file and to plan for the right one."""

import struct
from pathlib import Path
from typing import Any, BinaryIO

from attrs import frozen

MAX_STRING = 16 * 1024 * 1024
MAX_ENTRIES = 1 << 24
"""Of an array or of the table itself; ours: a damaged length must not be believed."""

_VERSIONS = (2, 3)
_NUMBERS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9
_WANTED = ("general.architecture", "general.name", "tokenizer.chat_template", "general.type")


class ModelFileError(ValueError):
    """The file holds no model that can be run; the text says why and what to do."""


@frozen
class ModelFile:
    """A model as its file describes it.

    Attributes:
        name: the file's name without ``.gguf``: what clients call the model.
        n_ctx_train: tokens of the window that it was trained for; 0 if the file does not say.
        chat_template: its own template, Jinja; "" if it has none.
    """

    path: Path
    name: str
    architecture: str
    n_ctx_train: int
    chat_template: str

    @property
    def takes_tools(self) -> bool:
        """Whether the template itself shows tools to the model."""
        return "tools" in self.chat_template

    @classmethod
    def read(cls, path: Path) -> "ModelFile":
        """Raises ``ModelFileError``: not there, not GGUF, cut short, or not a model."""
        try:
            with path.open("rb") as file:
                found = _metadata(file, path)
        except OSError as exc:
            reason = exc.strerror or type(exc).__name__
            raise ModelFileError(f"The model file {path} cannot be read: {reason}.") from None
        architecture = found.get("general.architecture")
        kind = found.get("general.type", "model")
        if not isinstance(architecture, str) or kind != "model":
            raise ModelFileError(
                f"{path} is a GGUF file that holds no model (its type is {kind!r}). Name the model's own."
            )
        window = found.get(f"{architecture}.context_length")
        template = found.get("tokenizer.chat_template")
        return cls(
            path,
            path.name.removesuffix(".gguf"),
            architecture,
            window if isinstance(window, int) else 0,
            template if isinstance(template, str) else "",
        )


def _metadata(file: BinaryIO, path: Path) -> dict[str, Any]:
    magic = file.read(4)
    if magic != b"GGUF":
        raise ModelFileError(
            f"{path} is not a GGUF file: it begins with {magic!r}. llama.cpp runs models in GGUF form only; "
            "look for a download whose name ends in .gguf."
        )
    try:
        version, _, n_entries = struct.unpack("<IQQ", _exactly(file, 20))
        if version not in _VERSIONS:
            raise ModelFileError(f"{path} is GGUF of version {version}; this reads {_VERSIONS}. Convert it again.")
        found: dict[str, Any] = {}
        for _ in range(_bounded(n_entries)):
            key = _string(file)
            kind = _number(file, 4)
            value = _value(file, kind)
            if key in _WANTED or key.endswith(".context_length"):
                found[key] = value
        return found
    except (EOFError, OverflowError, struct.error, KeyError):
        raise ModelFileError(f"{path} is a GGUF file that is cut short or damaged. Download it again.") from None


def _exactly(file: BinaryIO, n_bytes: int) -> bytes:
    read = file.read(n_bytes)
    if len(read) != n_bytes:
        raise EOFError
    return read


def _bounded(n: int, most: int = MAX_ENTRIES) -> int:
    if n > most:
        raise OverflowError
    return n


def _number(file: BinaryIO, kind: int) -> Any:
    form = _NUMBERS[kind]
    return struct.unpack(form, _exactly(file, struct.calcsize(form)))[0]


def _string(file: BinaryIO) -> str:
    return _exactly(file, _bounded(_number(file, 10), MAX_STRING)).decode("utf-8", "replace")


def _value(file: BinaryIO, kind: int) -> Any:
    """The value; None for an array, which is passed over."""
    if kind == _STRING:
        return _string(file)
    if kind != _ARRAY:
        return _number(file, kind)
    inner, n = _number(file, 4), _bounded(_number(file, 10))
    if inner in _NUMBERS:
        _exactly(file, n * struct.calcsize(_NUMBERS[inner]))
    else:
        for _ in range(n):
            _value(file, inner)
    return None
