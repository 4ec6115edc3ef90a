"""A model's chat template and tokenizer from its own files, as every model on Hugging Face has them."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import orjson
import trio
from attrs import define, field, frozen

from .base import BackendError
from .tokens_source import Decoder, Shape, Told

if TYPE_CHECKING:
    from jinja2 import Template
    from tokenizers import Tokenizer

TOKENIZER = "tokenizer.json"
SPECIAL_NAMES = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")
BREAK = "\ufdd0"
"""Stands behind the first character of a marker that a text only spells, until it is encoded. It is no character: no
tokenizer and no template has a use for it."""
N_IN_LOOP = 20_000
"""Characters that are encoded at once; more are encoded in a thread, so that the other sessions go on. Ours."""
MAX_REASON = 300


class ModelFilesError(ValueError):
    """The files cannot be used; says which, and what to do."""


def check_folder(folder: Path) -> None:
    """Raises ``ModelFilesError`` if ``folder`` holds no tokenizer."""
    if not (folder / TOKENIZER).is_file():
        raise ModelFilesError(
            f"{folder} holds no {TOKENIZER}; give the folder with the model's {TOKENIZER} and tokenizer_config.json"
        )


@frozen(eq=False)
class FilesSource:
    """See ``Source``. What a message only spells like one of the template's markers is encoded as ordinary text.

    Attributes:
        name: of the folder, for messages.
    """

    name: str
    template: str = field(repr=False)
    stop_ids: tuple[int, ...]
    notes: tuple[str, ...]
    _compiled: "Template" = field(repr=False)
    _specials: Mapping[str, str] = field(repr=False)
    _tokenizer: "Tokenizer" = field(repr=False)
    _plain: "Tokenizer" = field(repr=False)  # the same without added tokens
    _spelt: re.Pattern[str] = field(repr=False)  # a marker in a message
    _broken: re.Pattern[str] = field(repr=False)  # the same in a prompt, where it stands broken
    adapts: bool = False

    @classmethod
    async def load(cls, folder: Path) -> "FilesSource":
        """Raises ``ModelFilesError``."""
        return await trio.to_thread.run_sync(cls._load, folder)

    @classmethod
    def _load(cls, folder: Path) -> "FilesSource":
        try:
            import jinja2
            from tokenizers import Tokenizer
        except ImportError as exc:
            raise ModelFilesError(
                f"{folder} needs a package that is not installed ({exc.name}): pip install 'turntape[tokens]'"
            ) from None
        check_folder(folder)
        encoded = _read(folder / TOKENIZER)
        settings, generation = _object(folder / "tokenizer_config.json"), _object(folder / "generation_config.json")
        try:
            tokenizer = Tokenizer.from_str(encoded)
            plain = Tokenizer.from_str(orjson.dumps({**orjson.loads(encoded), "added_tokens": []}).decode())
        except Exception as exc:  # noqa: BLE001 - the package raises no narrower one
            raise ModelFilesError(f"{folder / TOKENIZER} is no tokenizer: {str(exc)[:MAX_REASON]}") from None
        for each in (tokenizer, plain):
            each.no_truncation()
            each.no_padding()
        template = _template(folder, settings)
        try:
            compiled = _environment().from_string(template)
        except jinja2.TemplateError as exc:
            raise ModelFilesError(f"{folder}: its chat template cannot be read: {str(exc)[:MAX_REASON]}") from None
        specials = {name: text for name in SPECIAL_NAMES if (text := _spelling(settings.get(name)))}
        stop_ids = _stop_ids(tokenizer, specials, generation)
        if not stop_ids:
            raise ModelFilesError(
                f"{folder} names no token that ends a turn; write eos_token into tokenizer_config.json, or eos_token_id "
                "into generation_config.json"
            )
        added = tokenizer.get_added_tokens_decoder().values()
        markers = {each.content for each in added if each.special or each.content in template}
        markers = {each for each in markers if len(each) > 1}
        forged = sorted(each for each in markers if tokenizer.token_to_id(each) in plain.encode(each).ids)
        notes = (
            (f"Text that spells {', '.join(forged[:8])} is read as that token, since the vocabulary has it as text.",)
            if forged
            else ()
        )
        longest = sorted(markers, key=len, reverse=True) or ["(?!)"]
        spelt = "|".join(map(re.escape, longest)) if markers else "(?!)"
        broken = "|".join(re.escape(each[0] + BREAK + each[1:]) for each in longest) if markers else "(?!)"
        return cls(
            folder.resolve().name,
            template,
            stop_ids,
            notes,
            compiled,
            specials,
            tokenizer,
            plain,
            re.compile(spelt),
            re.compile(f"({broken})"),
        )

    async def text(self, messages: Sequence[Any], tools: Sequence[bytes], told: Told) -> str:
        import jinja2

        try:
            variables = {
                **self._specials,
                **told.variables,
                "messages": [self._message(each, told.shape) for each in messages],
                "tools": [self._quoted(orjson.loads(each)) for each in tools] or None,
                "documents": None,
                "add_generation_prompt": True,
            }
            return self._compiled.render(variables)
        except (jinja2.TemplateError, TypeError, ValueError, KeyError, IndexError, AttributeError) as exc:
            reason = str(exc).replace(BREAK, "")[:MAX_REASON]
            raise BackendError(
                f"The chat template of {self.name} does not take this conversation: {reason}",
                code="invalid_prompt",
                status=400,
                param="input",
            ) from None

    async def tokens(self, text: str, *, is_first: bool) -> list[int]:
        if len(text) > N_IN_LOOP:
            return await trio.to_thread.run_sync(self._encode, text)
        return self._encode(text)

    def token(self, text: str) -> int | None:
        found = self._tokenizer.token_to_id(text)
        return None if found is None else int(found)

    def decoder(self) -> Decoder | None:
        return FilesDecoder(self._tokenizer)

    def _message(self, message: Mapping[str, Any], shape: Shape) -> dict[str, Any]:
        """As templates expect it: arguments as objects, most often, and a text where there is none."""
        content = message.get("content") or ""
        if not isinstance(content, str):
            raise BackendError(
                f"The input holds an image, which {self.name}, being asked in tokens, cannot take. Send text.",
                code="invalid_prompt",
                status=400,
                param="input",
            )
        told: dict[str, Any] = {**message, "content": content}
        if calls := message.get("tool_calls"):
            told["content"] = content.rstrip()  # the template ends the line before a call itself
            if shape.null_content and not told["content"]:
                told["content"] = None
            if not shape.text_arguments:
                told["tool_calls"] = [
                    {**call, "function": {**call["function"], "arguments": orjson.loads(call["function"]["arguments"])}}
                    for call in calls
                ]
        quoted: dict[str, Any] = self._quoted(told)
        return quoted

    def _quoted(self, value: Any) -> Any:
        """``value`` in which no text spells a marker."""
        match value:
            case str():
                return self._spelt.sub(lambda found: found[0][0] + BREAK + found[0][1:], value)
            case list():
                return [self._quoted(each) for each in value]
            case dict():
                return {self._quoted(name): self._quoted(each) for name, each in value.items()}
        return value

    def _encode(self, text: str) -> list[int]:
        ids: list[int] = []
        for n, part in enumerate(self._broken.split(text)):
            if not part:
                continue
            is_spelt = n % 2 == 1
            tokenizer = self._plain if is_spelt else self._tokenizer
            ids += tokenizer.encode(part.replace(BREAK, "") if is_spelt else part, add_special_tokens=False).ids
        return ids


@define(eq=False)
class FilesDecoder:
    """See ``Decoder``."""

    _tokenizer: "Tokenizer" = field(repr=False)
    _stream: Any = field(init=False, repr=False)

    def __attrs_post_init__(self) -> None:
        self._restart()

    def _restart(self) -> None:
        from tokenizers.decoders import DecodeStream

        self._stream = DecodeStream(skip_special_tokens=False)

    def feed(self, ids: Sequence[int]) -> str:
        return "".join(map(self._step, ids))

    def _step(self, token: int) -> str:
        try:
            return self._stream.step(self._tokenizer, token) or ""
        except Exception:  # noqa: BLE001 - what no text can be made of is left out; the answer goes on
            self._restart()
            return ""

    def says(self, ids: Sequence[int], text: str) -> bool:
        return bool(self._tokenizer.decode(list(ids), skip_special_tokens=False) == text)


# --- the files ------------------------------------------------------------------------------------------


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as exc:
        reason = exc.strerror if isinstance(exc, OSError) else "it is not UTF-8"
        raise ModelFilesError(f"{path} cannot be read: {reason}") from None


def _object(path: Path) -> dict[str, Any]:
    """The JSON object of a file; an empty one if there is no such file."""
    if not path.exists():
        return {}
    try:
        value = orjson.loads(_read(path))
    except orjson.JSONDecodeError:
        value = None
    if not isinstance(value, dict):
        raise ModelFilesError(f"{path} is not a JSON object; fetch the model's files again")
    return value


def _template(folder: Path, settings: Mapping[str, Any]) -> str:
    """The template for conversations with tools, where a model has several."""
    if (file := folder / "chat_template.jinja").exists():
        return _read(file)
    found = _object(folder / "chat_template.json").get("chat_template") or settings.get("chat_template")
    if isinstance(found, list):
        named = {each.get("name"): each.get("template") for each in found if isinstance(each, dict)}
        found = named.get("tool_use") or named.get("default")
    if not isinstance(found, str) or not found:
        raise ModelFilesError(
            f"{folder} holds no chat template: neither a chat_template.jinja nor a chat_template in "
            "tokenizer_config.json. Take the files of the model's chat (instruct) version, or use chat+URL"
        )
    return found


def _spelling(token: object) -> str:
    token = token.get("content") if isinstance(token, dict) else token
    return token if isinstance(token, str) else ""


def _stop_ids(tokenizer: "Tokenizer", specials: Mapping[str, str], generation: Mapping[str, Any]) -> tuple[int, ...]:
    named = generation.get("eos_token_id")
    ids = [token for token in (named if isinstance(named, list) else [named]) if type(token) is int]
    own = tokenizer.token_to_id(specials["eos_token"]) if "eos_token" in specials else None
    return tuple(dict.fromkeys([*([] if own is None else [own]), *ids]))


# --- the template's language ----------------------------------------------------------------------------


def _environment() -> Any:
    """Jinja as chat templates are written for it, by the conventions of transformers."""
    from jinja2 import TemplateError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """``{% generation %}`` marks what a model says, for training; here it is its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = _to_json
    helpers: dict[str, Callable[..., Any]] = {
        "raise_exception": raise_exception,
        "strftime_now": lambda form: datetime.now().strftime(form),
    }
    environment.globals.update(helpers)
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Not Jinja's own, which escapes for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
