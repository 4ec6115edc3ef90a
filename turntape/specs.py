"""How a backend is named: ``scripted``, ``chat+URL``, ``llama:FILE``, ``cerebras`` and the like, read and checked."""

import difflib
import re
from collections.abc import Collection
from pathlib import Path

from attrs import frozen

from turntape.transport.backends.dialects import presets

AT_URL = {
    "chat": ("http", "https"),
    "tokens": ("http", "https"),
    "responses": ("http", "https", "ws", "wss"),
}
"""What speaks at a URL, and the schemes it can be reached by."""

AT_FILE = ("scripted", "llama")

NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")

FORMS = (
    "scripted, scripted:FILE, chat+URL, tokens+URL, responses+URL, llama:FILE, a preset such as cerebras or ollama, "
    "or the name of a [backends] table"
)


class SpecError(ValueError):
    """It names no backend; says why, and never repeats a URL, which may hold a key."""


@frozen
class BackendSpec:
    """Which backend to use, as ``--backend`` names it.

    Attributes:
        kind: what it is: a key of ``AT_URL``, one of ``AT_FILE``, "preset", or "table" for a table of the configuration.
        file: the script or the model file; None is the built-in script.
        url: base URL; "" for a preset at its own.
        name: of the preset or the table.
    """

    kind: str
    file: Path | None = None
    url: str = ""
    name: str = ""

    def __str__(self) -> str:
        url = self.url.partition("?")[0]  # a query may hold a key
        match self.kind:
            case "table" | "preset":
                return f"{self.name}+{url}" if url else self.name
            case "scripted" | "llama":
                return f"{self.kind}:{self.file}" if self.file else f"{self.kind} (built in)"
        return f"{self.kind}+{url}"

    @classmethod
    def parse(cls, text: str, tables: Collection[str] = ()) -> "BackendSpec":
        """The backend that ``text`` names.

        Args:
            tables: names of the configuration's tables; such a name stands before a preset's.

        Raises:
            SpecError: it names none.
        """
        if text in tables:
            return cls("table", name=text)
        kind, colon, rest = text.partition(":")
        if text in AT_URL:
            raise SpecError(f"{text} needs a URL: {text}+http://127.0.0.1:8000/v1")
        if kind in AT_FILE and (rest or not colon or kind == "llama"):
            if kind == "llama" and not rest:
                raise SpecError("llama needs a model file: llama:FILE.gguf")
            return cls(kind, Path(rest) if rest else None)
        what, plus, url = text.partition("+")
        if plus and (what in AT_URL or what in presets()):
            schemes = AT_URL.get(what, AT_URL["chat"])
            _check_url(what, url, schemes)
            return cls(what, url=url) if what in AT_URL else cls("preset", url=url, name=what)
        if text in presets():
            if not presets()[text].base_url:
                raise SpecError(f"{text} has no URL that is the same for everybody; write {text}+https://…")
            return cls("preset", name=text)
        if re.match(r"(https?|wss?)://", text):
            scheme = text.partition(":")[0]
            if scheme in AT_URL["chat"]:
                raise SpecError(f"write chat+{scheme}://… for a chat-completions server at that URL")
            raise SpecError(f"write responses+{scheme}://… for a Responses API at that URL")
        if NAME.fullmatch(text):
            names = [*sorted(tables), *sorted(presets())]
            if near := difflib.get_close_matches(text.lower(), names, n=1, cutoff=0.7):
                raise SpecError(f"{text!r} is no backend; did you mean {near[0]!r}?")
            known = ", ".join(names)
            raise SpecError(f"{text!r} is none of: {FORMS}. Known names: {known}")
        shown = repr(text) if "://" not in text else "the URL's beginning"
        raise SpecError(f"{shown} is none of: {FORMS}")


def _check_url(what: str, url: str, schemes: Collection[str]) -> None:
    scheme, mark, rest = url.partition("://")
    if not mark or scheme not in schemes or not rest:
        raise SpecError(f"{what}+ is followed by a URL that begins with {' or '.join(f'{s}://' for s in schemes)}")
    if "@" in rest.partition("/")[0]:
        raise SpecError(
            "the URL holds a user name or key; put the key into a file or a variable (--backend-key-file, key-file, key-env)"
        )
