"""One sample of gpt-oss: ids to increments, and from where it must go on otherwise to obey the request."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from attrs import define, field

from turntape.core.context import Context
from turntape.core.harmony import ANALYSIS, CALL, CHANNEL, COMMENTARY, END, FINAL, MESSAGE, STOPS, Harmony
from turntape.core.harmony_parser import Closed, Content, HarmonyParser, Header, Opened, ParserEvent
from turntape.core.seam import Arguments, Increment, Message, Reasoning, Text, ToolCall

from .chat_tools import ToolNames
from .custom_input import CustomInput
from .tokens_base import Turn
from .tokens_choice import Choice
from .tokens_spoken import Spoken, Takes

PHASES = {COMMENTARY: "commentary"}
"""Any other channel that is shown is the final answer."""


@define(eq=False)
class HarmonySpeech:
    """See ``Speech``. While the request demands something, each id is looked at before the next is taken.

    A sample may think freely. Where it then does what the request does not allow, it is stopped and begun anew from
    that point with the right header written for it; where it writes what a schema binds, it goes on under that schema.
    """

    harmony: Harmony = field(repr=False)
    names: ToolNames = field(repr=False)
    choice: Choice
    new_call_id: Callable[[], str] = field(repr=False)
    takes: Takes = field(repr=False)
    context: Context = field(repr=False)
    ended: bool = False
    turn: Turn | None = None
    _parser: HarmonyParser = field(init=False, repr=False)
    _n_reasoning: int = 0  # of parsers before this one
    _is_free: bool = False
    _is_call_begun: bool = False  # we wrote the beginning of a call, and the model its name
    _closed_ids: list[int] = field(factory=list, repr=False)
    _spoken: list[Spoken] = field(factory=list, repr=False)
    _pending: list[int] = field(factory=list, repr=False)  # ids of messages that said nothing
    _open: Spoken | None = None
    _phase: str | None = None  # of a message whose first text has not come
    _decoder: CustomInput | None = None
    _begun: list[Header] = field(factory=list)  # messages that begin with the next request

    def __attrs_post_init__(self) -> None:
        self._parser = HarmonyParser(self.harmony.tokenizer)
        self._pending = self.harmony.prompt()
        self._is_free = not (self.choice.must_call or self.choice.denied or self.choice.schema)

    @property
    def n_reasoning(self) -> int:
        return self._n_reasoning + self._parser.n_analysis

    def feed(self, ids: Sequence[int], text: str) -> list[Increment]:
        out: list[Increment] = []
        for at, token in enumerate(ids):
            if self.ended or self.turn is not None:
                break
            if self._is_free:
                self._take(self._parser.feed(ids[at:]), out)
                break
            self._take(self._parser.feed((token,)), out)
        return out

    def end(self) -> list[Increment]:
        out: list[Increment] = []
        if not self.ended:
            self._take(self._parser.end(), out)
        return out

    def keep(self) -> None:
        self.takes.keep(self.context, self._spoken)

    # --- from events to increments --------------------------------------------------------------------

    def _take(self, events: Sequence[ParserEvent], out: list[Increment]) -> None:
        for event in events:
            if self.ended or self.turn is not None:
                return
            match event:
                case Opened(header):
                    if not self._is_free:
                        self._obey(header)
                    if self.turn is None:
                        self._begin(header, out)
                case Content(text):
                    self._say(text, out)
                case Closed(ids):
                    self._close(ids, out)

    def _begin(self, header: Header, out: list[Increment]) -> None:
        self._decoder, self._phase = None, None
        if header.function is not None:
            key = self.names.key(header.function)
            self._open = Spoken("call", call_id=self.new_call_id())
            self._decoder = CustomInput() if key.custom else None
            out.append(ToolCall(self._open.call_id, key.name, key.namespace, key.custom))
        elif header.channel == ANALYSIS:
            self._open = Spoken("reasoning", mark=ANALYSIS)
        else:
            self._phase = PHASES.get(header.channel, "final_answer")
            self._open = Spoken("message", mark="" if header.channel == COMMENTARY else FINAL)

    def _say(self, text: str, out: list[Increment]) -> None:
        spoken = self._open
        assert spoken is not None
        if spoken.kind == "reasoning":
            out.append(Reasoning(text))
        elif spoken.kind == "message":
            if self._phase is not None:
                out.append(Message(self._phase))
                self._phase = None
            out.append(Text(text))
        else:
            if self._decoder is not None:
                text = self._decoder.feed(text)
            if text:
                out.append(Arguments(text))
        spoken.texts.append(text)

    def _close(self, ids: tuple[int, ...], out: list[Increment]) -> None:
        spoken, self._open = self._open, None
        assert spoken is not None
        self._closed_ids += ids
        if spoken.kind == "call":
            rest = self._decoder.end() if self._decoder is not None else "" if spoken.text.strip() else "{}"
            if rest:
                out.append(Arguments(rest))
                spoken.texts.append(rest)
        self.ended = bool(ids) and ids[-1] in STOPS
        self._pending += _in_history(ids, CALL if spoken.kind == "call" else END)
        if spoken.kind != "call" and not spoken.text:
            return  # no item comes of it
        last = self._spoken[-1] if self._spoken else None
        if last is not None and last.kind == spoken.kind == "reasoning":  # one item to the client
            last.ids += self._pending
            last.texts += spoken.texts
        else:
            spoken.ids = self._pending
            self._spoken.append(spoken)
        self._pending = []

    # --- what the request demands -----------------------------------------------------------------------

    def resume(self) -> list[Increment]:
        out: list[Increment] = []
        begun, self._begun, self.turn = self._begun, [], None
        for header in begun:
            self._begin(header, out)
        return out

    def _obey(self, header: Header) -> None:
        """Set ``turn`` if the message that begins is not what it must be, or is to be bound by a schema."""
        choice, function = self.choice, header.function
        if function is None and header.channel == ANALYSIS:
            return
        if choice.must_call:
            if function not in choice.allowed:
                if len(choice.allowed) > 1 and not self._is_call_begun:
                    self._is_call_begun = True
                    self._begin_anew(self.harmony.words(" to=functions"))
                    return
                function = next(iter(choice.allowed))
            assert function is not None
            self._is_free = True
            self._begin_anew(self.harmony.call_header(function), choice.allowed[function])
        elif function is not None:
            if function in choice.denied:
                self._is_free = True
                self._begin_anew([CHANNEL, *self.harmony.words(FINAL), MESSAGE], choice.schema)
        elif header.channel != COMMENTARY:
            self._is_free = True
            if choice.schema is not None:
                self._begun = [header]
                self.turn = Turn((*self._closed_ids, *self._parser.open_ids), choice.schema)

    def _begin_anew(self, header: list[int], schema: Mapping[str, Any] | None = None) -> None:
        """Go on from the end of the last whole message with a header of ours."""
        self._n_reasoning += self._parser.n_analysis
        self._parser = HarmonyParser(self.harmony.tokenizer)
        author = self.harmony.prompt() if self._closed_ids else []  # the first message's is in the prompt
        events = self._parser.feed([*author, *header])
        self._begun = [event.header for event in events if isinstance(event, Opened)]
        self.turn = Turn((*self._closed_ids, *author, *header), schema)


def _in_history(ids: tuple[int, ...], end: int) -> list[int]:
    """A sampled message as it stands in a conversation: it ends as such a message ends, however sampling did."""
    return [*(ids[:-1] if ids and ids[-1] in (END, *STOPS) else ids), end]
