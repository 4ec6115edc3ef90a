"""What a server's log says of requests that came to nothing."""

import logging

import pytest
from serving import Http, Model, Server, create

from turntape.core.seam import Text
from turntape.transport import log
from turntape.transport.backends.base import BackendError
from turntape.transport.server import ServerSettings
from turntape.transport.store import StoreError

SECRET = "what was asked"
REFUSAL = BackendError("Come\nback.", code="rate_limit_exceeded", status=429)
FAILURE = [(0, ()), (0, (Text("said"),)), BackendError("It broke.", code="server_error")]
NOT_FINISHED = [(0, ()), (0, (Text("said"),))]


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ([REFUSAL], "backend refused a request: model m: 429 rate_limit_exceeded: Come back."),
        (FAILURE, "backend failed: model m: 500 server_error: It broke."),
        (
            NOT_FINISHED,
            "backend failed: model m: 500 server_error: The response stopped before it was finished.",
        ),
    ],
)
@pytest.mark.parametrize("stream", [True, False])
async def test_a_failing_backend_is_one_warning(nursery, autojump_clock, caplog, turn, said, stream):
    """Whoever runs the server sees each failure, in one line with model, status and code, and nothing of the prompt."""
    caplog.set_level(logging.INFO)
    await Server(nursery, Model([turn])).http().post(SECRET, model="m", stream=stream)
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [("WARNING", said)]
    assert SECRET not in caplog.text


async def test_a_model_that_is_not_there_is_no_alarm(nursery, autojump_clock, caplog):
    """A name that a client made up is information; one that this server lists and cannot serve is a warning."""
    caplog.set_level(logging.INFO)
    unknown = BackendError("No such model.", code="model_not_found", status=404, param="model")
    backend = Model([[unknown], [unknown]])
    backend.models = ("listed",)
    http = Server(nursery, backend).http()
    await http.post(SECRET, model="gpt-9")
    await http.post(SECRET, model="listed")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "refused: model gpt-9: 404 model_not_found: No such model."),
        ("WARNING", "backend refused a request: model listed: 404 model_not_found: No such model."),
    ]


async def test_a_failing_store_is_a_warning(nursery, autojump_clock, caplog):
    """A disk that is full is for whoever runs the server, not only for the client."""

    class Full:
        async def save(self, record):
            raise StoreError("disk full")

    server = Server(nursery, Model())
    server.service.store = Full()
    await server.http().post(SECRET, store=True)
    assert caplog.messages == ["store could not write: disk full"]


async def ask_what_is_refused(http: Http) -> None:
    await http.post(SECRET, model=5)
    await http.ask("GET", "/v1")


async def test_a_refused_request_is_said_to_those_who_ask(nursery, autojump_clock, caplog):
    """At level info each refusal is one line, of a session or of HTTP, without the prompt; by default there is none."""
    http = Server(nursery, Model()).http()
    await ask_what_is_refused(http)
    assert not caplog.messages
    caplog.set_level(logging.INFO)
    await ask_what_is_refused(http)
    paths = "this server answers at /v1/responses, /v1/models and /healthz"
    assert caplog.messages == [
        "refused: 400 invalid_value (model): Invalid value for 'model': expected a string, but got an integer instead.",
        f"refused: GET /v1: 404 not_found: Unknown path '/v1'; {paths}.",
    ]
    assert SECRET not in caplog.text


async def test_a_refused_key_is_said_without_it(nursery, autojump_clock, caplog):
    """A wrong key is a line in the log, over HTTP and WebSocket, and does not stand in it."""
    caplog.set_level(logging.INFO)
    server = Server(nursery, Model(), ServerSettings(keys=frozenset({"sk-right"})))
    await server.http().ask("POST", "/v1/responses", create().encode(), authorization="Bearer sk-wrong")
    with pytest.raises(AssertionError):
        await server.websocket(authorization="Bearer sk-wrong")
    assert [message.partition("; ")[0].partition(".")[0] for message in caplog.messages] == [
        "refused: POST /v1/responses: 401 invalid_api_key: Incorrect API key provided",
        "refused: GET /v1/responses: 401 invalid_api_key: Incorrect API key provided",
    ]
    assert "sk-wrong" not in caplog.text


def test_a_line_is_a_line():
    """A message can neither forge a second line, nor command a terminal, nor fill the log."""
    assert log.line("a\r\nINFO: b\x1b[2J") == "a INFO: b\\x1b[2J"
    assert len(log.line("x" * 9999)) == log.MAX_CHARS
