"""What a chat message holds: an item's content, calls' ids and arguments as a server takes them."""

import re
from hashlib import blake2b
from string import ascii_letters, digits
from typing import Any

import orjson

from .base import BackendError
from .chat_dialect import Dialect

BETWEEN_PARTS = "\n"
"""Joins the text parts of one content, as vLLM does; servers that want a string (Ollama) get one."""

_ID_LETTERS = ascii_letters + digits


def _unsupported(what: str, cure: str) -> BackendError:
    return BackendError(
        f"The input holds {what}, which the chat-completions server cannot take. {cure}",
        code="invalid_prompt",
        status=400,
        param="input",
    )


def _text(part: dict[str, Any]) -> str | None:
    """Text of a part, a refusal's included; None for an image.

    Raises:
        BackendError: for a file.
    """
    kind = part["type"]
    if kind == "input_file":
        raise _unsupported("a part of type 'input_file'", "Send the file's text as an 'input_text' part instead.")
    if kind == "input_image":
        return None
    return str(part["refusal"] if kind == "refusal" else part["text"])


def _image(part: dict[str, Any], dialect: Dialect) -> dict[str, Any]:
    url, detail = part.get("image_url"), part.get("detail")
    if not isinstance(url, str) or not url:
        raise _unsupported(
            "a part of type 'input_image' without an 'image_url'",
            "Send the image as an http(s) or data URL; uploaded files are unknown to it.",
        )
    if not dialect.image_urls and not url.startswith("data:"):
        raise _unsupported("an image by its address", "Send the image itself, as a data URL.")
    image = {"url": url}
    if isinstance(detail, str) and detail != "auto":
        image["detail"] = detail
    return {"type": "image_url", "image_url": image}


def content_of(content: Any, dialect: Dialect) -> Any:
    """A string if it is all text, since some servers tear arrays apart; otherwise typed parts.

    Raises:
        BackendError: a part that no chat message can hold.
    """
    if isinstance(content, str):
        return content
    texts = [_text(part) for part in content]
    if None not in texts:
        return BETWEEN_PARTS.join(filter(None, texts))
    return [
        _image(part, dialect) if text is None else {"type": "text", "text": text}
        for part, text in zip(content, texts, strict=True)
    ]


def assistant_text(content: Any) -> str:
    """Raises ``BackendError`` for an image."""
    if isinstance(content, str):
        return content
    texts = [_text(part) for part in content]
    if None in texts:
        raise _unsupported("an image in an assistant's message", "Send it in a user's message instead.")
    return BETWEEN_PARTS.join(filter(None, texts))


def output_text(output: Any, dialect: Dialect) -> tuple[str, list[dict[str, Any]]]:
    """A tool's output as one string, and its images, which only a user's message can carry."""
    if isinstance(output, str):
        return output, []
    texts: list[str] = []
    images: list[dict[str, Any]] = []
    for part in output:
        text = _text(part)
        if text is None:
            images.append(_image(part, dialect))
            text = f"[image {len(images)}: in a message below]"
        texts.append(text)
    return BETWEEN_PARTS.join(texts), images


def with_thinking(reasoning: str, text: str) -> list[dict[str, Any]]:
    """The content of an assistant's message with a thinking part in front."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": reasoning}]}
    return [thinking, {"type": "text", "text": text}] if text else [thinking]


def arguments_of(text: str) -> str:
    """Arguments that are surely a JSON object: servers parse the whole history and fail on what a model once wrote."""
    if not text.strip():
        return "{}"
    try:
        if isinstance(orjson.loads(text), dict):
            return text
    except orjson.JSONDecodeError:
        pass
    return orjson.dumps({"unreadable_arguments": text}).decode()


def wire_id(call_id: str, dialect: Dialect) -> str:
    """``call_id`` if the server takes it, otherwise letters and digits that are always the same for it.

    No way back is needed: a server writes the ids of its own calls, and reads others only in the history.
    """
    if not dialect.call_ids or re.search(dialect.call_ids, call_id):
        return call_id
    number = int.from_bytes(blake2b(call_id.encode("utf-8", "surrogatepass"), digest_size=32).digest())
    letters = list[str]()
    for _ in range(dialect.call_id_length):
        number, n = divmod(number, len(_ID_LETTERS))
        letters.append(_ID_LETTERS[n])
    return "".join(letters)
