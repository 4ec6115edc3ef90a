"""Codex rollout files (``CODEX_HOME/sessions/…/rollout-*.jsonl``) to conversations.

A rollout holds the items of a conversation in their order, when each was there, and the token counts of each answer. It
holds neither the requests nor the deltas. An answer is what the model said until its tokens were counted, or else until
something new was put to it. Layouts as Codex 0.98, 0.101 and 0.171 write them, read 2026-11-29.
"""

import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

from attrs import define, field

from turntape.core.reasoning import PREFIX
from turntape.core.seam import Encrypted, Finish, Increment, Usage
from turntape.replay.packing import decode

from .conversations import Conversation, Imported, ImportedTurn, Source
from .items import increments_of, is_said

UNKNOWN = ("tools", "tool_choice", "parallel_tool_calls", "reasoning", "include", "text", "service_tier")
"""Fields of Codex's requests that no rollout holds."""

NOTES = (
    "Imported from Codex rollout files.",
    "A rollout holds the items, their times and token counts, but no deltas: an answer's items come whole, each at its time.",
    f"Nor does it hold these fields of the requests, which a stub therefore does not check: {', '.join(UNKNOWN)}.",
    "Turns whose request it does not hold, as the summary of a compaction, and interrupted answers are left out.",
)

NEVER_SENT = ("ghost_snapshot", "other")
"""Items that Codex keeps for itself."""

LAST_WITH_FIELD = (0, 101)
"""The last version that is known to send its instructions as a field; 0.171 sends them as the first developer message."""

ADAPTED = (
    "The instructions are those that the rollout begins with; Codex leaves out of them what does not apply, so a rule lets"
    " them differ after their first line."
)

METADATA = "internal_chat_message_metadata_passthrough"


def is_rollout(values: list[Any]) -> bool:
    """Whether the first values of a file are those of a rollout."""
    return bool(values) and isinstance(values[0], dict) and values[0].get("type") == "session_meta"


def read(source: Source, imported: Imported) -> None:
    """Add the conversation of one rollout."""
    reading = _Rollout(source.name, imported)
    for number, row in _rows(source, imported):
        reading.take(number, row)
    reading.finish()


def _rows(source: Source, imported: Imported) -> Iterator[tuple[int, dict[str, Any]]]:
    for number, line in enumerate(source.content.split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            row = decode(line)
        except (ValueError, RecursionError):
            row = None
        if isinstance(row, dict) and isinstance(row.get("payload"), dict):
            yield number, row
        else:
            imported.skipped.append(f"{source.name}:{number}: is no line of a rollout")


@define
class _Exchange:
    """What was put to the model, and what it said, as far as either is there.

    Attributes:
        history: replaces the conversation before ``asked``: it was compacted.
        counted_at: when the tokens of the answer were counted; None if they were not.
        lost: why it makes no turn; "" if it does.
    """

    line: int
    model: str | None
    asked_at: float
    asked: list[dict[str, Any]] = field(factory=list)
    said: list[tuple[float, dict[str, Any]]] = field(factory=list)
    history: list[dict[str, Any]] | None = None
    usage: Usage | None = None
    counted_at: float | None = None
    lost: str = ""

    @property
    def text(self) -> str:
        """The visible text that was said."""
        parts = [part for _, item in self.said if item.get("type") == "message" for part in item.get("content") or ()]
        return "".join(str(part.get("text", "")) for part in parts if isinstance(part, dict))


@define
class _Rollout:
    """One rollout, as far as it has been read."""

    name: str
    imported: Imported
    _exchanges: list[_Exchange] = field(factory=list)
    _agent: str | None = None
    _model: str | None = None
    _instructions: str | None = None
    _as_field: bool = True
    _total: Any = None  # tokens as they were counted last: the same count is told more than once
    _now: float = 0.0
    _history_unknown: bool = False
    _put_instructions: bool = False

    def take(self, line: int, row: dict[str, Any]) -> None:
        payload = row["payload"]
        self._now = max(self._now, _seconds(row.get("timestamp")))
        match row.get("type"), payload.get("type"):
            case "session_meta", _ if self._agent is None:  # a resumed or forked session tells again
                self._meta(payload)
            case "turn_context", _ if isinstance(model := payload.get("model"), str):
                self._model = model
            case "response_item", kind if kind not in NEVER_SENT:
                self._item(line, _sent(payload))
            case "compacted", _:
                self._compacted(line, payload)
            case "token_usage_record", _:
                self._counted(payload.get("usage"))
            case "event_msg", "token_count":
                counts = payload.get("info")
                if isinstance(counts, dict) and counts.get("total_token_usage") != self._total:
                    self._total = counts.get("total_token_usage")
                    self._counted(counts.get("last_token_usage"))
            case "event_msg", "turn_aborted":
                self._aborted()

    def _meta(self, payload: dict[str, Any]) -> None:
        version, originator = str(payload.get("cli_version", "")), str(payload.get("originator") or "codex")
        self._agent = f"{originator}/{version}" if originator.startswith("codex") else f"codex/{version} ({originator})"
        base = payload.get("base_instructions")
        text = base.get("text") if isinstance(base, dict) else payload.get("instructions")
        self._instructions = text if isinstance(text, str) and text else None
        self._as_field = tuple(int(part) for part in re.findall(r"\d+", version)[:2]) <= LAST_WITH_FIELD

    def _begun(self, items: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The beginning of a conversation, with the instructions that Codex puts before it, if it has not got its own."""
        if self._instructions is None or self._as_field:
            return items
        first_line = self._instructions.partition("\n")[0]
        if any(text.startswith(first_line) for text in _developer_texts(items)):
            return items
        self._put_instructions = True
        part = {"type": "input_text", "text": self._instructions}
        return [{"type": "message", "role": "developer", "content": [part]}, *items]

    def _open(self, line: int) -> _Exchange:
        self._exchanges.append(_Exchange(line, self._model, self._now))
        return self._exchanges[-1]

    def _item(self, line: int, item: dict[str, Any]) -> None:
        last = self._exchanges[-1] if self._exchanges else self._open(line)
        if is_said(item):
            if last.counted_at is not None:
                last = self._open(line)
            if not last.said:
                last.line, last.model = line, self._model
            last.said.append((self._now, item))
        else:
            if last.said:
                last = self._open(line)
            last.asked.append(item)
            last.asked_at = self._now

    def _counted(self, usage: Any) -> None:
        """Codex counts the tokens of an answer when that is whole."""
        if self._exchanges and self._exchanges[-1].said and self._exchanges[-1].counted_at is None:
            self._exchanges[-1].counted_at, self._exchanges[-1].usage = self._now, _usage(usage)

    def _aborted(self) -> None:
        last = next((exchange for exchange in reversed(self._exchanges) if exchange.said), None)
        if last is not None and last.counted_at is None and any(e.counted_at is not None for e in self._exchanges):
            last.lost = "an answer that was interrupted"

    def _compacted(self, line: int, payload: dict[str, Any]) -> None:
        last = self._exchanges[-1] if self._exchanges else None
        if last is not None and last.said and (not last.asked or last.text in str(payload.get("message"))):
            last.lost = "the summary of a compaction; what asked for it is not in the rollout"
        exchange = self._open(line)
        if isinstance(new := payload.get("replacement_history"), list):
            exchange.history = [_sent(item) for item in new if isinstance(item, dict)]
        else:
            self._history_unknown = True
        if self._history_unknown:
            exchange.lost = "it follows a compaction whose new conversation is not in the rollout"

    # --- turns ----------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """Make turns of the exchanges."""
        turns = list[ImportedTurn]()
        history, follows, lost = list[dict[str, Any]](), None, ""
        if self._exchanges:
            self._exchanges[0].asked = self._begun(self._exchanges[0].asked)
        for number, exchange in enumerate(self._exchanges, 1):
            if exchange.history is not None:
                history, follows, lost = self._begun(exchange.history), None, ""
            elif exchange.lost.startswith("it follows"):
                lost = exchange.lost  # and so does everything after it
            said = [item for _, item in exchange.said]
            if said and (why := exchange.lost or lost):
                self._skip(exchange, why)
            elif said and (turn := self._turn(exchange, f"answer {number}", follows, history)) is not None:
                turns.append(turn)
            history = [*history, *exchange.asked, *said]
            follows = f"answer {number}" if said else follows
        if not turns:
            self.imported.skipped.append(f"{self.name}: holds no answer of a model")
            return
        unknown = [*UNKNOWN]
        unknown += ["instructions"] if self._instructions is None else []
        unknown += ["model"] if any(exchange.model is None for exchange in self._exchanges if exchange.said) else []
        rules: list[Any] = ["codex", {"rule": "ignore", "fields": unknown}]
        if self._instructions is not None and self._put_instructions:
            instructions = self.imported.masker.text(self._instructions)
            first_line = re.escape(instructions.partition("\n")[0]).replace(r"\ ", " ")
            first_line = re.sub("[\ud800-\udfff]", ".", first_line)  # half a character cannot be written into a rule
            place = {"items": ["message"], "at": "content.*.text"}
            rules.append({"rule": "replace", **place, "pattern": rf"(?s)\A{first_line}.*", "with": "<instructions/>"})
            if ADAPTED not in self.imported.notes:
                self.imported.notes.append(ADAPTED)
        self.imported.conversations.append(Conversation(tuple(turns), self._agent or "codex/", tuple(rules)))

    def _skip(self, exchange: _Exchange, why: str) -> None:
        self.imported.skipped.append(f"{self.name}:{exchange.line}: {why}")

    def _turn(
        self, exchange: _Exchange, name: str, follows: str | None, history: list[dict[str, Any]]
    ) -> ImportedTurn | None:
        batches = list[tuple[float, tuple[Increment, ...]]]()
        for at, item in exchange.said:
            said = increments_of(item)
            if said is None:
                self._skip(exchange, f"an answer with an item of type {item.get('type')}")
                return None
            if own := tuple(i for i in said if not (isinstance(i, Encrypted) and i.content.startswith(PREFIX))):
                batches.append((at, own))
        batches.append((exchange.counted_at or exchange.said[-1][0], (Finish("stop", exchange.usage),)))
        body: dict[str, Any] = {"model": exchange.model or "unknown", "store": False, "stream": True}
        if self._instructions is not None and self._as_field:
            body["instructions"] = self._instructions
        asked_at = min(exchange.asked_at, batches[0][0])
        where = f"{self.name}:{exchange.line}"
        return ImportedTurn(where, asked_at, body, exchange.asked, tuple(batches), name, follows, tuple(history))


def _developer_texts(items: list[dict[str, Any]]) -> Iterator[str]:
    for item in items:
        parts = item.get("content") if item.get("role") == "developer" else None
        for part in parts if isinstance(parts, list) else ():
            if isinstance(part, dict):
                yield str(part.get("text", ""))


def _sent(item: dict[str, Any]) -> dict[str, Any]:
    """An item as Codex sends it."""
    return {name: value for name, value in item.items() if name != METADATA}


def _seconds(timestamp: Any) -> float:
    """Seconds since 1970 of ``2026-11-29T22:18:17.790Z``; 0 of anything else."""
    try:
        return datetime.fromisoformat(str(timestamp)).timestamp()
    except ValueError:
        return 0.0


def _usage(usage: Any) -> Usage | None:
    if not isinstance(usage, dict):
        return None
    names = ("input_tokens", "output_tokens", "cached_input_tokens", "reasoning_output_tokens")
    n_input, n_output, n_cached, n_reasoned = (_count(usage.get(name)) for name in names)
    return Usage(n_input, n_output, min(n_cached, n_input), min(n_reasoned, n_output))


def _count(value: Any) -> int:
    return value if type(value) is int and 0 <= value < 1 << 53 else 0
