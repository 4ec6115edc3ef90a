"""Secrets in texts: what of a text is one, and the text without it, the same each time, whole or in pieces.

A mask keeps the beginning that says what kind of key it was and puts one fixed word for the rest: ``sk-[masked]``.
No hash, no length: nothing of the key is in it. So one text has one masked form, wherever it stands, a masked
recording matches a client that is masked alike, and masking twice changes nothing.
"""

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

from attrs import define, field, frozen

from .errors import ReplayError
from .literals import Literals
from .shapes import LITERAL, LOOK_BEHIND, MASK, SHAPES, Shape, configured, named

SHORTEST_VALUE = 6
"""Characters that a configured secret must have. A shorter one stands in ordinary text by accident, and hiding it says where."""

ENTROPY_BITS = 4.3
"""Per character, from which on a long random word is warned of. Hexadecimal stays at 4 or less: ids and hashes are not."""

_RANDOM_WORD = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{32,128}={0,2}(?![A-Za-z0-9+/_=-])")
_ASSIGNMENT = re.compile(
    r"(?<![A-Za-z0-9_])(?P<k>[A-Z][A-Z0-9_]{0,60}(?:KEY|TOKEN|SECRET|PASSWORD|PASSWD|CREDENTIALS)=[\"'\\]*)"
    r"(?P<b>[^\s\"'\\$<>{}()\[\],;*]{8,256})"
)

_FIELDS = frozenset(
    {
        "accept",
        "accept-encoding",
        "cache-control",
        "connection",
        "content-encoding",
        "content-length",
        "content-type",
        "date",
        "openai-beta",
        "openai-model",
        "openai-processing-ms",
        "openai-version",
        "originator",
        "retry-after",
        "retry-after-ms",
        "sec-websocket-extensions",
        "sec-websocket-protocol",
        "sec-websocket-version",
        "server",
        "transfer-encoding",
        "upgrade",
        "user-agent",
        "version",
        "x-request-id",
        "x-should-retry",
    }
)
_FAMILIES = ("x-ratelimit-", "x-stainless-")
_SCANNED_AT_ONCE = 1024
"""Characters that may be a secret up to which each piece is looked at as it comes; ours. Known keys are shorter."""

_TOKEN_LIKE = re.compile(r"[A-Za-z0-9_.~+/=-]{24,}")


def _beginning(value: str) -> str:
    """A pattern of every beginning of ``value`` that is shorter; of several, a search finds the longest first."""
    pattern = ""
    for character in reversed(value[:-1]):
        pattern = re.escape(character) + (f"(?:{pattern})?" if pattern else "")
    return pattern


@frozen
class Finding:
    """Something in a text that is a secret, or looks like one.

    Attributes:
        kind: what it is, for people.
        start: where it begins in the text, in characters; what a mask keeps stands before.
        end: where it ends.
        certain: a known shape or a configured value, which is masked; else it is only warned of.
        found_at: where what a mask keeps begins.
    """

    kind: str
    start: int
    end: int
    certain: bool = True
    found_at: int = field(default=0, eq=False, repr=False)


@frozen
class Masker:
    """Knows secrets by their shapes, and by what it was told.

    Make one with ``Masker.of``; ``Masker()`` knows the known shapes alone, as ``DEFAULT`` does.

    Attributes:
        shapes: in the order in which they name what two of them find.
        values: every form of every configured value.
    """

    shapes: tuple[Shape, ...] = field(default=SHAPES, repr=False)
    values: tuple[str, ...] = field(default=(), repr=False)
    _literals: Literals = field(init=False, repr=False, eq=False)  # of all shapes
    _by_literal: dict[str, tuple[Shape, ...]] = field(init=False, repr=False, eq=False)
    _beginnings: re.Pattern[str] | None = field(init=False, repr=False, eq=False)  # of values, at a text's end

    def __attrs_post_init__(self) -> None:
        literals = Literals.of(literal for shape in self.shapes for literal in shape.literals)
        by_literal = {
            head: tuple(shape for shape in self.shapes if any(lit.startswith(head) for lit in shape.literals))
            for head in literals.heads
        }
        beginnings = "|".join(_beginning(value[:LITERAL]) for value in self.values)
        set_ = object.__setattr__
        set_(self, "_literals", literals)
        set_(self, "_by_literal", by_literal)
        set_(self, "_beginnings", re.compile(rf"(?:{beginnings})\Z") if beginnings else None)

    @property
    def longest_literal(self) -> int:
        return self._literals.longest

    @classmethod
    def of(cls, values: Iterable[str] = (), names: Iterable[str] = ()) -> "Masker":
        """
        Args:
            values: secrets, each masked wherever it stands, also inside JSON.
            names: of variables or fields: what a text assigns to one is masked.

        Raises:
            ReplayError: a value is too short to be told from ordinary text, or a name is none.
        """
        forms = set[str]()
        for value in values:
            if len(value) < SHORTEST_VALUE:
                raise ReplayError(
                    f"A configured secret has {len(value)} characters; it should have {SHORTEST_VALUE} or more, "
                    "or else ordinary text would be masked, and show by that what the secret is."
                )
            forms.update(_forms(value))
        told = (*map(configured, sorted(forms)), *map(named, names))
        return cls((*told, *SHAPES), tuple(sorted(forms))) if told else DEFAULT

    def text(self, text: str) -> str:
        """``text`` with every certain secret masked; the same object if there is none.

        It may be plain text or JSON: JSON stays JSON.
        """
        spans = _merged(self.certain(text))
        return _masked(text, 0, len(text), spans) if spans else text

    def findings(self, text: str) -> list[Finding]:
        """What is masked in ``text``, and what is only warned of, in order."""
        certain = _merged(self.certain(text))
        doubtful = [finding for finding in _doubtful(text) if not any(_overlap(finding, known) for known in certain)]
        return sorted((*certain, *_merged(doubtful)), key=lambda finding: finding.start)

    def stream(self) -> "StreamMasker":
        """For a text that comes in pieces."""
        return StreamMasker(self)

    def certain(self, text: str, base: int = 0) -> Iterator[Finding]:
        """The secrets whose beginning stands at ``base`` or later; some may overlap."""
        done = dict[int, int]()  # by shape, where its last match ended: no text costs more than one pass
        for at, shape in self._places(text, base):
            if _ends_inside(shape, text, at, done.get(id(shape), 0)):
                continue
            if (match := shape.pattern.match(text, at)) is not None:
                if shape.closed or shape.begins is not None:
                    done[id(shape)] = match.end()
                if shape.plausible(match["b"]):
                    yield Finding(shape.kind, *match.span("b"), found_at=at)

    def begun(self, text: str, base: int) -> Iterator[tuple[int, int]]:
        """What may go on behind the end of ``text``: where it begins, and where the part of it that is not kept does."""
        if self._beginnings is not None and (begun := self._beginnings.search(text, base)) is not None:
            yield begun.start(), begun.start()
        settled = set[int]()  # shapes of which nothing begins earlier
        done = dict[int, int]()
        for at, shape in self._places(text, base):
            known = id(shape)
            if known in settled or (shape.begins and _ends_inside(shape, text, at, done.get(known, 0))):
                continue
            if (match := shape.pattern.fullmatch(text, at, partial=True)) is None:
                if shape.begins is not None and (ended := shape.pattern.match(text, at)) is not None:
                    done[known] = ended.end()
            elif match["k"] is None:
                yield at, len(text)
            else:
                settled.add(known)
                yield at, match.end("k")

    def begins_nothing(self, text: str, n_new: int) -> bool:
        """Whether no secret begins with any of the last ``n_new`` characters of ``text``, and none did before."""
        start = max(0, len(text) - n_new - self.longest_literal + 1)
        if self._literals.stand_in(text, start):
            return False
        return self._beginnings is None or self._beginnings.search(text, start) is None

    def _places(self, text: str, base: int) -> Iterator[tuple[int, Shape]]:
        for at, literal in self._literals.places(text, base):
            for shape in self._by_literal[literal]:
                yield at, shape


DEFAULT = Masker()


@define(eq=False)
class StreamMasker:
    """Masks one text that comes in pieces: what it gives, joined, is the masked whole.

    A piece that can be no part of a secret goes out as it came; so does the beginning of a key that its mask keeps.
    What may be a secret is held until it has ended.

    Attributes:
        found: the kind of the first secret that was masked.
    """

    masker: Masker
    found: str = field(init=False, default="")
    _text: str = field(init=False, default="")  # the end of what was fed
    _base: int = field(init=False, default=0)  # what begins before was decided upon earlier
    _out: int = field(init=False, default=0)  # this much of _text has gone out, or its mask has
    _begun: bool = field(init=False, default=False)
    _unseen: list[str] = field(init=False, factory=list)  # pieces that go on with what may be a long secret
    _n_unseen: int = field(init=False, default=0)

    @property
    def holding(self) -> bool:
        """Something was fed and has not gone out."""
        return self._out < len(self._text) or self._n_unseen > 0

    def passes(self, delta: str) -> bool:
        """Whether ``delta`` goes out as it is, and is fed by that: nothing is held, and it begins no secret."""
        if self._begun or not self.masker.begins_nothing(self._text + delta, len(delta)):
            return False
        self._text += delta
        self._decided(len(self._text), len(self._text))
        return True

    def feed(self, delta: str) -> str:
        """What can go out now."""
        if self.passes(delta):
            return delta
        self._unseen.append(delta)
        self._n_unseen += len(delta)
        if self._begun and len(self._text) > max(_SCANNED_AT_ONCE, 8 * self._n_unseen):
            return ""  # or else a text that never ends would be looked at whole with each piece
        text = self._see()
        first = limit = len(text)
        for start, body in self.masker.begun(text, self._base):
            first, limit = min(first, start), min(limit, body)
        self._begun = first < len(text)
        spans = self._spans()
        for span in reversed(spans):
            if span.start < limit < span.end:
                limit, first = span.start, min(first, span.found_at)
        masked = self._masked(limit, spans)
        self._decided(first, limit)
        return masked

    def flush(self) -> str:
        """The rest: the text has ended."""
        self._see()
        masked = self._masked(len(self._text), self._spans())
        self._text, self._base, self._out, self._begun = "", 0, 0, False
        return masked

    def _see(self) -> str:
        self._text += "".join(self._unseen)
        self._unseen, self._n_unseen = [], 0
        return self._text

    def _masked(self, limit: int, spans: list[Finding]) -> str:
        spans = [span for span in spans if span.start < limit]
        if spans:
            self.found = self.found or spans[0].kind
        return _masked(self._text, self._out, limit, spans)

    def _decided(self, first: int, out: int) -> None:
        """All before ``out`` has gone out, and nothing before ``first`` can begin a secret any more: forget it."""
        undecided = max(self._base, min(first, out - self.masker.longest_literal))
        keep = max(0, undecided - LOOK_BEHIND)
        self._text, self._base, self._out = self._text[keep:], undecided - keep, out - keep

    def _spans(self) -> list[Finding]:
        return [span for span in _merged(self.masker.certain(self._text, self._base)) if span.end > self._out]


def allowed_headers(headers: Mapping[str, str], masker: Masker = DEFAULT) -> dict[str, str]:
    """Those of ``headers`` that say how a request or an answer is to be read, in lower case; no other one is kept.

    A value of theirs that holds a secret, or looks like a token that was put where a protocol's name belongs, is masked.
    """
    allowed = dict[str, str]()
    for name, value in headers.items():
        name = name.lower()
        if name in _FIELDS or name.startswith(_FAMILIES):
            value = masker.text(value)
            if name == "sec-websocket-protocol":  # where browsers, which can send no header, put a key
                value = _TOKEN_LIKE.sub(MASK, value)
            allowed[name] = value
    return allowed


def _ends_inside(shape: Shape, text: str, at: int, end: int) -> bool:
    """Whether what begins at ``at`` is no more than a part of the match before it, which ended at ``end``."""
    if at >= end:
        return False
    if shape.begins is None:
        return True
    head = shape.begins.match(text, at)
    return head is None or head.end() <= end


def _overlap(one: Finding, other: Finding) -> bool:
    return one.start < other.end and other.start < one.end


def _merged(findings: Iterable[Finding]) -> list[Finding]:
    """In order, and those that overlap as one."""
    merged = list[Finding]()
    for finding in sorted(findings, key=lambda finding: (finding.start, -finding.end)):
        if merged and finding.start < merged[-1].end:
            last = merged[-1]
            found_at = min(last.found_at, finding.found_at)
            merged[-1] = Finding(last.kind, last.start, max(last.end, finding.end), last.certain, found_at)
        else:
            merged.append(finding)
    return merged


def _masked(text: str, start: int, end: int, spans: Iterable[Finding]) -> str:
    """``text`` from ``start`` to ``end`` with a mask for each of ``spans``, which lie in it."""
    parts = list[str]()
    for span in spans:
        parts += text[start : span.start], MASK
        start = span.end
    return "".join((*parts, text[start:end]))


def _forms(value: str) -> set[str]:
    """``value`` as it stands in a text, in JSON, and in JSON in JSON."""
    forms = {value}
    for _ in range(2):
        forms |= {json.dumps(form, ensure_ascii=ascii_only)[1:-1] for form in forms for ascii_only in (False, True)}
    return forms


def _doubtful(text: str) -> Iterator[Finding]:
    for match in _ASSIGNMENT.finditer(text):
        yield Finding(
            "value of a variable that is named like a secret", match.start("b"), match.end("b"), certain=False
        )
    for match in _RANDOM_WORD.finditer(text):
        if _is_of_all_kinds(match[0]) and _entropy(match[0]) >= ENTROPY_BITS:
            yield Finding("random text", match.start(), match.end(), certain=False)


def _is_of_all_kinds(word: str) -> bool:
    return any(c.isdigit() for c in word) and any(c.islower() for c in word) and any(c.isupper() for c in word)


def _entropy(word: str) -> float:
    """Bits per character, by how often each stands in ``word``."""
    return -sum(n / len(word) * math.log2(n / len(word)) for n in Counter(word).values())
