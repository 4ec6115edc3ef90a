"""Which server answers at a URL, and what it says of its model."""

from collections.abc import Awaitable, Callable
from typing import Any

from attrs import field, frozen

from .base import BackendError
from .tokens_servers import SERVERS, Server

Get = Callable[[str], Awaitable[dict[str, Any] | None]]
"""Asks for a path: the JSON object there, or None for a path that the server does not know."""


@frozen
class Found:
    """What was found.

    Attributes:
        names: of the model: its path, its public names.
        template: its chat template, where the server tells it.
    """

    server: Server
    names: tuple[str, ...] = ()
    template: str = field(default="", repr=False)

    @property
    def is_harmony(self) -> bool:
        """It is a gpt-oss, as far as can be told."""
        named = any("gpt-oss" in name.lower().replace("_", "-") for name in self.names)
        return named or ("<|channel|>" in self.template and "<|start|>" in self.template)


async def find(kind: str, get: Get, where: str) -> Found:
    """Ask the server what it is.

    Args:
        kind: its kind if that is known, or "auto".
        where: names it in a message.

    Raises:
        BackendError: it is none of those that take token ids.
    """
    if kind in ("auto", "llamacpp") and (props := await get("/props")) is not None:
        template, path = props.get("chat_template"), props.get("model_path")
        return Found(SERVERS["llamacpp"], _texts(path), template if isinstance(template, str) else "")
    if kind in ("auto", "sglang"):
        for path in ("/get_model_info", "/model_info"):
            if (model := await get(path)) is not None and "model_path" in model:
                return Found(SERVERS["sglang"], _texts(model.get("model_path"), model.get("tokenizer_path")))
    if kind in ("auto", "vllm") and (kind == "vllm" or await get("/version") is not None):
        listed = (await get("/v1/models") or {}).get("data")
        models = [model for model in listed if isinstance(model, dict)] if isinstance(listed, list) else []
        return Found(SERVERS["vllm"], _texts(*(model.get(name) for model in models for name in ("id", "root"))))
    if kind != "auto":
        return Found(SERVERS[kind])
    raise BackendError(
        f"The backend at {where} does not look like vLLM, SGLang or llama.cpp: it has none of /props, /get_model_info and /version. "
        "Check its URL, or say which it is; a server that takes messages only is reached as chat+URL.",
        status=502,
    )


def _texts(*values: object) -> tuple[str, ...]:
    return tuple(value for value in values if isinstance(value, str))
