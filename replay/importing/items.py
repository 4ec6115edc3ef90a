"""Items of a conversation, as the Responses API has them: who made each, and what a model did to say it."""

from typing import Any

from turntape.core.seam import (
    Arguments,
    Encrypted,
    Increment,
    Message,
    Reasoning,
    Refusal,
    Summary,
    Text,
    ToolCall,
)


def is_said(item: dict[str, Any]) -> bool:
    """Whether a model made it."""
    kind = item.get("type", "message")
    if kind == "message":
        return item.get("role") == "assistant"
    return kind == "reasoning" or (isinstance(kind, str) and kind.endswith("_call"))


def increments_of(item: dict[str, Any]) -> tuple[Increment, ...] | None:
    """All that a model says to make ``item``; None if no increments can say it."""
    match item:
        case {"type": "function_call", "call_id": str(call_id), "name": str(name), "arguments": str(arguments)}:
            return _call(item, call_id, name, arguments, custom=False)
        case {"type": "custom_tool_call", "call_id": str(call_id), "name": str(name), "input": str(text)}:
            return _call(item, call_id, name, text, custom=True)
        case {"type": "message", "content": list(parts)}:
            said = _parts(parts, {"output_text": ("text", Text), "refusal": ("refusal", Refusal)})
            return None if said is None else (Message(item.get("phase")), *said)
        case {"type": "reasoning"}:
            return _reasoning(item)
    return None


def _call(item: dict[str, Any], call_id: str, name: str, text: str, *, custom: bool) -> tuple[Increment, ...]:
    namespace = item.get("namespace")
    begun = ToolCall(call_id, name, namespace if isinstance(namespace, str) else None, custom)
    return (begun, Arguments(text)) if text else (begun,)


def _reasoning(item: dict[str, Any]) -> tuple[Increment, ...] | None:
    summary, content = item.get("summary") or [], item.get("content") or []
    raw = _parts(content, {"reasoning_text": ("text", Reasoning), "text": ("text", Reasoning)})
    if raw is None or not isinstance(summary, list):
        return None
    said: list[Increment] = []
    for number, part in enumerate(summary):
        if not (isinstance(part, dict) and isinstance(text := part.get("text"), str)):
            return None
        said.append(Summary(text, number))
    said += raw
    if isinstance(sealed := item.get("encrypted_content"), str) and sealed:
        said.append(Encrypted(sealed))
    return tuple(said)


def _parts(parts: Any, kinds: dict[str, tuple[str, Any]]) -> tuple[Increment, ...] | None:
    said: list[Increment] = []
    for part in parts if isinstance(parts, list) else [None]:
        if not isinstance(part, dict) or not isinstance(kind := part.get("type"), str) or kind not in kinds:
            return None
        key, cls = kinds[kind]
        if not isinstance(text := part.get(key), str):
            return None
        said.append(cls(text))
    return tuple(said)
