"""Reads the events of an answer with status 200, and says what came where it is no stream of events."""

import re
from typing import Any

import orjson
from attrs import define, field

from ..http_client import Response
from .chat_errors import Refusals

MAX_ANSWER_BYTES = 16 * 1024 * 1024
"""Of an answer that is not streamed though a stream was asked for."""

WHOLE = {"choices": ("chat completions", "chat+URL"), "output": ("the Responses API", "responses+URL")}
"""The field that an answer in one piece is known by: what its server speaks, and how that is reached."""

ERRORS = ("error", "message", "detail")
"""Fields of which a reader makes the server's own error."""


@define(eq=False)
class AnswerEvents:
    """The events of one answer.

    Args:
        speaks: the field of ``WHOLE`` that is expected; "" for token ids, which always come as a stream.
    """

    response: Response
    refusals: Refusals
    speaks: str
    media_type: str = field(init=False)
    _has_come: bool = field(init=False, default=False)

    def __attrs_post_init__(self) -> None:
        self.media_type = self.response.headers.get("content-type", "").partition(";")[0].strip().lower()

    async def read(self) -> list[bytes] | None:
        """Those of one read; an answer in one piece is one; None at the end.

        Raises:
            HttpError: the exchange failed.
            BackendError: what came is no answer.
        """
        if self.media_type == "application/json" and self.speaks:
            whole = await self.response.body(MAX_ANSWER_BYTES)
            self._check(whole)
            return [whole] if whole else None
        if self.media_type == "text/html":
            raise self.refusals.broken("answered with a web page; check its URL, which usually ends in /v1")
        events = await self.response.events()
        if events is None and not self._has_come and self.media_type != "text/event-stream":
            raise self.refusals.broken(f"answered with {self._shown}, in which there is no event; {self._cure}")
        self._has_come = True
        return events

    def _check(self, whole: bytes) -> None:
        """Raise ``BackendError`` for a JSON object that is neither an answer nor an error."""
        value: Any = None
        if whole:
            try:
                value = orjson.loads(whole)
            except orjson.JSONDecodeError:
                return  # the reader says so
        if not isinstance(value, dict) or self.speaks in value or any(value.get(name) for name in ERRORS):
            return
        for name, (spoken, form) in WHOLE.items():
            if name in value:
                raise self.refusals.broken(f"answered in the form of {spoken}; try {form} with its base URL")
        raise self.refusals.broken(f"answered with JSON that is no answer of {WHOLE[self.speaks][0]}; {self._cure}")

    @property
    def _shown(self) -> str:
        return self.media_type if re.fullmatch(r"[!-~]{1,80}", self.media_type) else "no content type that can be read"

    @property
    def _cure(self) -> str:
        does = f"speaks {WHOLE[self.speaks][0]}" if self.speaks else "streams token ids"
        return f"check that its URL is right and that it {does} there: turntape doctor"
