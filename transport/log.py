"""What the log says of requests that came to nothing: one line each, never a prompt, never a key.

Failures of backends and stores are warnings. What is refused because of the client is information: a server that many
clients use would drown in it.
"""

import logging
from collections.abc import Collection

import orjson

from turntape.core.seam import SampleFailed, StartSample, event_type

logger = logging.getLogger(__name__)

MAX_CHARS = 500
"""Of a message. Those of backends are made for clients: masked, and bounded at their source."""


def line(text: str) -> str:
    """``text`` on one line, cut, with control characters shown and not sent to a terminal."""
    text = " ".join(text[: MAX_CHARS + 1].split())
    text = text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
    return "".join(c if c.isprintable() else f"\\x{ord(c):02x}" for c in text)


def sample_failed(start: StartSample, failed: SampleFailed, *, begun: bool, listed: Collection[str]) -> None:
    """A backend refused ``start``, or failed once its answer had begun.

    Args:
        listed: models that this server says it has. That there is no other is news for the client, and no fault here.
    """
    is_clients = failed.code == "model_not_found" and start.model not in listed
    level = logging.INFO if is_clients else logging.WARNING
    what = "refused" if is_clients else "backend failed" if begun else "backend refused a request"
    message = line(failed.message)
    logger.log(level, "%s: model %s: %d %s: %s", what, line(start.model), failed.status, failed.code, message)


def store_failed(what: str, message: str) -> None:
    logger.warning("store could not %s: %s", what, line(message))


def session_refused(data: tuple[bytes, ...]) -> None:
    """Say what among these server events tells the client no, if anybody listens."""
    if not logger.isEnabledFor(logging.INFO):
        return
    for entry in data:
        kind = event_type(entry)
        if kind not in ("error", "response.failed"):
            continue
        event = orjson.loads(entry)
        error = event["error"] if kind == "error" else event["response"]["error"]
        status = f"{event['status']} " if kind == "error" else ""
        param = f" ({line(error['param'])})" if error.get("param") else ""
        logger.info("refused: %s%s%s: %s", status, error["code"], param, line(error["message"]))


def http_refused(method: str, path: str, status: int, body: bytes) -> None:
    """An HTTP request was answered with an error that no session gave."""
    if status < 400 or not logger.isEnabledFor(logging.INFO):
        return
    error = orjson.loads(body)["error"] if body else {"code": "", "message": ""}
    logger.info("refused: %s %s: %d %s: %s", line(method), line(path), status, error["code"], line(error["message"]))
