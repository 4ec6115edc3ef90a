"""What went wrong at a Responses server, as its events say it: nested or flat, with a status or with a code alone."""

from collections.abc import Mapping
from typing import Any

import orjson

from turntape.core.response import without_surrogates

from .base import BackendError
from .chat_errors import Refusals, in_stream

FIELDS = ("message", "code", "type", "param")

STATUSES: Mapping[str, int] = {
    "invalid_prompt": 400,
    "invalid_request_error": 400,
    "context_length_exceeded": 400,
    "previous_response_not_found": 400,
    "invalid_api_key": 401,
    "authentication_error": 401,
    "insufficient_quota": 402,
    "model_not_found": 404,
    "rate_limit_exceeded": 429,
    "server_is_overloaded": 503,
    "slow_down": 503,
}
"""The status that a code implies where the event has none; 502 for any other."""


def failure_in(refusals: Refusals, event: Mapping[str, Any], n_before: int | None = None) -> BackendError:
    """The error that an event, or a failed response, tells of.

    Args:
        refusals: of the backend whose event it is.
        n_before: events of the answer that came before it; None if it stands in place of an answer.
    """
    error = event.get("error")
    said = error if isinstance(error, dict) else {"message": error} if isinstance(error, str) else dict(event)
    code = said.get("code") or said.get("type")
    status = next(
        (n for n in (event.get("status"), said.get("status"), code) if type(n) is int and 400 <= n < 600), None
    )
    headers: dict[str, str] = {}
    for each in (said.get("headers"), event.get("headers")):
        if isinstance(each, dict):
            headers |= {str(name).lower(): str(value) for name, value in each.items()}
    texts = {key: without_surrogates(text) for key in FIELDS if isinstance(text := said.get(key), str)}
    status = status or STATUSES.get(str(code), 502)
    how = f"refused the request with status {status}" if n_before is None else in_stream(n_before)
    return refusals.refused(status, headers, orjson.dumps({"error": texts}), how=how)
