"""HTTP/1.1 on the one port: responses as JSON and SSE, the small endpoints, and what cannot be served."""

import gzip
import json
import sys

import pytest
import trio
import trio.testing
from serving import Http, Model, Server, WebSocket, endless

from turntape.core.seam import Finish, Text
from turntape.transport.backends.base import BackendError
from turntape.transport.posts import wants_stream
from turntape.transport.server import ServerSettings
from turntape.transport.store import StoreError

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

OVERLOAD = BackendError("Come back.", code="rate_limit_exceeded", status=429, retry_after="3")
LATE_FAILURE = [(0, ()), (0, (Text("x"),)), BackendError("It broke.", code="server_error")]


@pytest.fixture
async def server(nursery):
    return Server(nursery, Model(), ServerSettings(models=("m", "org/model"), max_message_bytes=100_000))


# --- POST /v1/responses -----------------------------------------------------------------------------------


async def test_c62_without_stream_the_response_is_the_body(server, autojump_clock):
    """C62: without ``stream`` the whole Response object is the body."""
    reply = await server.http().post()
    assert reply.status == 200 and reply.headers["content-type"] == "application/json"
    assert reply.headers["x-request-id"].startswith("req_")
    assert reply.json["object"] == "response" and reply.json["status"] == "completed"
    assert reply.json["output"][0]["content"][0]["text"] == "hello"


async def test_c63_with_stream_the_events_come_as_sse(server, autojump_clock):
    """C63: with ``stream`` the events come as SSE under their names, and ``[DONE]`` ends them."""
    reply = await server.http().post(stream=True)
    assert reply.status == 200 and reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert reply.headers["cache-control"] == "no-cache" and reply.headers["x-accel-buffering"] == "no"
    assert reply.headers["x-request-id"].startswith("req_")
    assert [event["sequence_number"] for event in reply.events] == list(range(10))
    assert reply.events[0]["type"] == "response.created" and reply.events[-1]["type"] == "response.completed"


async def test_sse_events_are_whole_in_their_chunk(nursery, autojump_clock):
    """Each write holds whole events, and one batch is one write, since some clients lose split ones."""
    turn = [(0, ()), (1, tuple(Text(f"{n}") for n in range(40))), (1, (Finish(),))]
    reply = await Server(nursery, Model([turn])).http().post(stream=True)
    assert len(reply.events) == 48
    writes = [write for write in reply.writes if b"data: " in write]
    assert all(write.rstrip(b"\r\n0").endswith(b"}") or b"[DONE]" in write for write in writes)
    assert max(write.count(b"\nevent: ") for write in writes) >= 40


async def test_keep_alive(server, autojump_clock):
    """One connection serves request after request, of every kind."""
    http = server.http()
    for _ in range(2):
        assert (await http.post(stream=True)).status == 200
        assert (await http.ask("GET", "/healthz")).json == {"status": "ok"}
        assert (await http.post(5)).status == 400
        assert (await http.ask("GET", "/nothing")).status == 404
        assert (await http.post()).status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_a_refusal_is_an_http_error(nursery, autojump_clock, stream):
    """What is refused before a response exists has its own status, the API's body, and when to come back."""
    http = Server(nursery, Model([[OVERLOAD]])).http()
    reply = await http.post(stream=stream)
    assert (reply.status, reply.headers["retry-after"]) == (429, "3")
    assert reply.headers["content-type"] == "application/json"
    assert reply.error == {
        "message": "Come back.", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded",
    }  # fmt: skip
    reply = await http.post(5, stream=stream)
    assert (reply.status, reply.error["param"], reply.error["code"]) == (400, "input", "invalid_value")


async def test_c64_a_failure_mid_stream_is_an_event_and_done(nursery, autojump_clock):
    """C64: what fails after the stream began is ``response.failed``, then ``[DONE]``."""
    reply = await Server(nursery, Model([LATE_FAILURE])).http().post(stream=True)
    assert reply.status == 200
    assert reply.events[-1]["type"] == "response.failed"
    assert reply.events[-1]["response"]["error"] == {"code": "server_error", "message": "It broke."}


async def test_a_failure_without_a_stream_is_a_500(nursery, autojump_clock):
    """A response that failed after it began has no body to show: its error is the answer."""
    reply = await Server(nursery, Model([LATE_FAILURE])).http().post()
    assert (reply.status, reply.error["code"], reply.error["message"]) == (500, "server_error", "It broke.")


async def test_an_incomplete_response_is_a_200(nursery, autojump_clock):
    """A response cut at its token limit is still the answer."""
    reply = await Server(nursery, Model([[(0, (Text("x"), Finish("length")))]])).http().post()
    assert (reply.status, reply.json["status"]) == (200, "incomplete")


async def test_websocket_fields_are_refused(server, autojump_clock):
    """C39: ``stream_id`` and ``generate`` exist on WebSockets only."""
    for fields in ({"stream_id": "a"}, {"generate": False}):
        reply = await server.http().post(**fields)
        assert (reply.status, reply.error["code"]) == (400, "unknown_parameter")


async def test_not_json_and_not_utf8(server, autojump_clock):
    """A body that is no JSON, or no text at all, is a 400 that says so."""
    http = server.http()
    assert (await http.ask("POST", "/v1/responses", b"{")).error["code"] == "invalid_json"
    reply = await http.ask("POST", "/v1/responses", b'{"model":"\xff"}')
    assert reply.status == 400 and "UTF-8" in reply.error["message"]
    assert (await http.post()).status == 200


async def test_a_crash_of_the_session_is_a_500(nursery, autojump_clock, caplog):
    """Our own bug is a 500 that shows nothing of the inside, and the server goes on."""

    class Crashing:
        closed, deadline = False, float("inf")

        def receive(self, event, *, now):
            raise ZeroDivisionError("inside")

    server = Server(nursery, Model(), new_session=Crashing)
    reply = await server.http().post(stream=True)
    assert (reply.status, reply.error["code"]) == (500, "server_error") and "inside" not in reply.error["message"]
    assert "ZeroDivisionError" in caplog.text
    assert (await server.http().ask("GET", "/healthz")).status == 200


@pytest.mark.parametrize("stream", [True, False])
async def test_leaving_frees_the_sample(nursery, autojump_clock, stream):
    """C46 over HTTP: a client that drops its connection frees the backend without time passing."""
    backend = Model([endless(pause_s=1)])
    http = Server(nursery, backend).http()
    body = json.dumps({"model": "m", "input": "hi", "stream": stream}).encode()
    await http.send("POST", "/v1/responses", body)
    await trio.sleep(2.5)
    assert backend.n_running == 1
    await trio.aclose_forcefully(http.stream)
    await trio.testing.wait_all_tasks_blocked()
    assert backend.n_running == 0 and trio.current_time() == 2.5


async def test_a_pipelined_request_waits_its_turn(nursery, autojump_clock):
    """A request sent while another is answered is not taken for a departure, and is answered next."""
    http = Server(nursery, Model([[(0, ()), (5, (Text("slow"), Finish()))]])).http()
    await http.send("POST", "/v1/responses", b'{"model":"m","input":"hi"}')
    await trio.sleep(1)
    await http.stream.send_all(b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert (await http.reply()).json["status"] == "completed"
    received = b""
    while b"ok" not in received:
        received += await http.stream.receive_some()
    assert received.startswith(b"HTTP/1.1 200 OK")


async def test_http_1_0(server, autojump_clock):
    """An HTTP/1.0 client gets its stream without chunks, ended by the close."""
    stream, body = server.connect(), b'{"model":"m","input":"hi","stream":true}'
    await stream.send_all(b"POST /v1/responses HTTP/1.0\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
    received = b""
    while more := await stream.receive_some():
        received += more
    assert b"chunked" not in received and received.endswith(b"}\n\ndata: [DONE]\n\n")
    assert b"\r\n\r\nevent: response.created\ndata: {" in received


# --- bodies -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "body, streams",
    [
        (b'{"stream":true}', True),
        (b'{"stream" :\n true, "input":"' + b"x" * 10_000 + b'"}', True),
        (b'{"input":[{"a":{"stream":true}}]}', False),
        (b'{"input":[{"a":{"stream":true}}],"b":"}}"}', False),
        (b'{"stream":false,"input":{"stream":true},"x":1}', False),
        (b'{"input":{"stream":true},"stream":true,"x":[{"y":"\\"}"}]}', True),
        (b'{"stream":true,"input":{"stream":true}}', True),
        (b'{"input":"\\"stream\\":true"}', False),
        (b'{"input":{"stream":true},"pad":"' + b"x" * 10_000 + b'"}', False),
        (b'{"stream":"true"}', False),
        (b'["stream",true]', False),
        (b"", False),
    ],
)
def test_who_wants_a_stream(body, streams):
    """Only the top level's ``stream`` counts, wherever it stands."""
    assert wants_stream(body) is streams


async def test_chunked_and_expected_bodies(server, autojump_clock):
    """A body may come in chunks, and is invited with 100 Continue where the client waits for that."""
    stream, body = server.connect(), b'{"model":"m","input":"hi"}'
    head = (
        b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\nexpect: 100-continue\r\ntransfer-encoding: chunked\r\n\r\n"
    )
    await stream.send_all(head)
    assert (await stream.receive_some()).startswith(b"HTTP/1.1 100 ")
    for n in range(0, len(body), 7):
        await stream.send_all(b"%x\r\n%b\r\n" % (len(body[n : n + 7]), body[n : n + 7]))
    await stream.send_all(b"0\r\n\r\n")
    assert (await stream.receive_some()).startswith(b"HTTP/1.1 200 OK")


@pytest.mark.parametrize("encoding, compress", [("gzip", gzip.compress), ("zstd", zstd.compress)])
async def test_compressed_bodies(server, autojump_clock, encoding, compress):
    """A gzip or zstd body is taken; a bomb, a torn one, one with something behind it, and no such body are refused."""
    http, body = server.http(), json.dumps({"model": "m", "input": "hi"}).encode()
    reply = await http.ask("POST", "/v1/responses", compress(body), content_encoding=encoding)
    assert reply.status == 200
    for content, status in (
        (compress(b" " * 100_000), 400),  # allowed, and no JSON
        (compress(b" " * 100_001), 413),
        (compress(body)[:-1], 400),
        (compress(body) + b"x", 400),
        (body, 400),
        (b"", 400),
    ):
        reply = await server.http().ask("POST", "/v1/responses", content, content_encoding=encoding)
        assert reply.status == status and reply.error["message"], content


async def test_unknown_content_codings(server, autojump_clock):
    """A coding that is not known is refused by name, and the answer says which are."""
    for encoding in ("br", "gzip, zstd", "x"):
        reply = await server.http().ask("POST", "/v1/responses", b"{}", content_encoding=encoding)
        assert reply.status == 415 and repr(encoding) in reply.error["message"]
        assert reply.headers["accept-encoding"] == "zstd, gzip, identity"


async def test_a_zstd_window_is_bounded(server, autojump_clock):
    """A zstd frame that wants a window above 8 MiB is refused before memory is taken for it."""
    compressor = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 24})
    body = compressor.compress(b'{"model":"m","input":"hi"}') + compressor.flush()  # of no announced size
    reply = await server.http().ask("POST", "/v1/responses", body, content_encoding="zstd")
    assert (reply.status, reply.error["code"]) == (400, "invalid_encoding")


async def test_a_body_over_the_bound(server, autojump_clock):
    """A body larger than allowed is refused: before it is sent if its size is known, else when it is passed."""
    assert (await server.http().ask("POST", "/v1/responses", b" " * 100_001)).status == 413
    stream = server.connect()
    await stream.send_all(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n")
    await stream.send_all(b"186a1\r\n" + b" " * 100_001)
    assert (await stream.receive_some()).startswith(b"HTTP/1.1 413 ")
    assert (await server.http().post("x" * 90_000)).status == 200


async def test_a_body_that_stops_coming(server, autojump_clock):
    """A client that pauses within its body for too long gets a 408."""
    stream = server.connect()
    await stream.send_all(b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ncontent-length: 10\r\n\r\n{")
    assert (await stream.receive_some()).startswith(b"HTTP/1.1 408 ")
    assert trio.current_time() == 30


async def test_heads(server, autojump_clock):
    """Heads that are garbage, too large, or too slow end their own connection, with an answer where one fits."""
    for head, status in (
        (b"\x16\x03\x01\x02\x00\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nx: " + b"a" * 140_000 + b"\r\n\r\n", b"431"),
        (b"GET / HTTP/1.1\r\n\r\n", b"400"),
        (b"POST / HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: gzip\r\n\r\n", b"501"),
    ):
        stream = server.connect()
        await stream.send_all(head)
        answer = await stream.receive_some()
        assert answer.startswith(b"HTTP/1.1 %b " % status)
        assert b'{"error":{"message":"Bad HTTP request' in answer and b"x-request-id" in answer
    slow = server.connect()
    start = trio.current_time()
    await slow.send_all(b"GET /healthz HT")
    assert await slow.receive_some() == b"" and trio.current_time() - start <= 32


async def test_a_bad_head_is_not_repeated(server, autojump_clock):
    """The answer to a head that cannot be read says what is wrong, and repeats no line of it: a key may stand there."""
    for head in (
        b"GET / HTTP/1.1\r\nhost: localhost\r\nauthorization : Bearer sk-secret\r\n\r\n",
        b"GET /?key=sk-secret\r\n\r\n",
        b"POST /v1/responses HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\nsk-secret\r\n",
    ):
        stream = server.connect()
        await stream.send_all(head)
        answer = await stream.receive_some()
        assert b"Bad HTTP request: illegal " in answer and b"secret" not in answer


async def test_idle_connections_are_closed(server, autojump_clock):
    """A kept connection may rest between requests for a while, and then is closed."""
    http = server.http()
    await http.ask("GET", "/healthz")
    await trio.sleep(60)
    await http.ask("GET", "/healthz")
    start = trio.current_time()
    assert await http.stream.receive_some() == b""
    assert 75 <= trio.current_time() - start <= 77


# --- the other endpoints --------------------------------------------------------------------------------------


async def stored(http: Http, **fields):
    return (await http.post(store=True, **fields)).json


async def test_c66_get_and_delete(server, autojump_clock):
    """C66: a stored response can be had and deleted; one that was not stored is a 404."""
    http = server.http()
    response = await stored(http)
    path = f"/v1/responses/{response['id']}"
    assert (await http.ask("GET", path)).json == response
    assert (await http.ask("DELETE", path)).json == {"id": response["id"], "object": "response", "deleted": True}
    for method in ("GET", "DELETE"):
        reply = await http.ask(method, path)
        assert reply.status == 404 and response["id"] in reply.error["message"]
    unstored = (await http.post()).json
    assert (await http.ask("GET", f"/v1/responses/{unstored['id']}")).status == 404


async def test_c65_a_chain_goes_on_over_http(server, autojump_clock):
    """C65: a response stored by a POST or over a WebSocket can be continued by another POST."""
    http = server.http()
    first = await stored(http)
    second = await stored(http, previous_response_id=first["id"])
    assert second["previous_response_id"] == first["id"]
    assert server.backend.starts[-1].context.n_items == 3
    ws = await server.websocket()
    await ws.create("over the socket", store=True)
    created = (await ws.until("response.completed"))[-1]["response"]
    third = await stored(http, previous_response_id=created["id"])
    assert third["previous_response_id"] == created["id"]
    said = server.backend.starts[-1].context.items_after(None)[0].value
    assert said["content"][0]["text"] == "over the socket"
    assert (await http.ask("GET", f"/v1/responses/{created['id']}")).json == created


async def test_c66_input_items(server, autojump_clock):
    """C66: the input is listed newest first, in pages, and items without an id get one that stays."""
    http, items = server.http(), [{"role": "user", "content": f"{n}"} for n in range(5)]
    items[2] = {"type": "message", "id": "msg_mine", "role": "user", "content": [{"type": "input_text", "text": "2"}]}
    response = (await http.post(items, store=True)).json
    path = f"/v1/responses/{response['id']}/input_items"

    def texts(page):
        return [item["content"][0]["text"] for item in page["data"]]

    page = (await http.ask("GET", path)).json
    assert (page["object"], texts(page), page["has_more"]) == ("list", ["4", "3", "2", "1", "0"], False)
    assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
    assert len({item["id"] for item in page["data"]}) == 5 and page["data"][2]["id"] == "msg_mine"
    first = (await http.ask("GET", f"{path}?limit=2&order=asc")).json
    assert (texts(first), first["has_more"]) == (["0", "1"], True)
    second = (await http.ask("GET", f"{path}?limit=3&order=asc&after={first['last_id']}")).json
    assert (texts(second), second["has_more"]) == (["2", "3", "4"], False)
    last = (await http.ask("GET", f"{path}?order=asc&after={second['last_id']}")).json
    assert last == {"object": "list", "data": [], "first_id": None, "last_id": None, "has_more": False}
    for query, param in (
        ("limit=0", "limit"),
        ("limit=101", "limit"),
        ("limit=x", "limit"),
        ("order=up", "order"),
        ("after=no", "after"),
    ):
        reply = await http.ask("GET", f"{path}?{query}")
        assert (reply.status, reply.error["param"]) == (400, param)
    assert (await http.ask("GET", "/v1/responses/resp_no/input_items")).status == 404


async def test_c69_input_tokens(server, autojump_clock):
    """C69: input is counted without asking the model or storing anything."""
    http = server.http()
    reply = await http.post("hello " * 100, "/v1/responses/input_tokens")
    assert reply.json["object"] == "response.input_tokens" and reply.json["input_tokens"] > 50
    assert not server.backend.starts
    assert (await http.post(5, "/v1/responses/input_tokens")).status == 400


async def test_c70_models(server, autojump_clock):
    """C70: models are listed and found, slashes and all; another is not found."""
    http = server.http()
    listed = (await http.ask("GET", "/v1/models?client_version=0.171.0")).json
    assert [model["id"] for model in listed["data"]] == ["m", "org/model"] and listed["object"] == "list"
    assert all(model["object"] == "model" and model["owned_by"] == "turntape" for model in listed["data"])
    assert (await http.ask("GET", "/v1/models/org/model")).json == listed["data"][1]
    assert (await http.ask("GET", "/v1/models/org%2Fmodel")).json == listed["data"][1]
    reply = await http.ask("GET", "/v1/models/other")
    assert (reply.status, reply.error["code"]) == (404, "model_not_found")


async def test_small_answers(server, autojump_clock):
    """Cancel, unknown paths, wrong methods and HEAD each get the answer that fits, in the API's form."""
    http = server.http()
    assert (await http.post(path="/v1/responses/resp_1/cancel")).status == 400
    assert (await http.ask("GET", "/v2/x")).error["code"] == "not_found"
    reply = await http.ask("PUT", "/v1/responses/resp_1")
    assert (reply.status, reply.headers["allow"]) == (405, "DELETE, GET") and reply.error[
        "code"
    ] == "method_not_allowed"
    assert (await http.ask("GET", "/v1/responses/resp_1?stream=true")).error["param"] == "stream"
    reply = await http.ask("GET", "/v1/responses")
    assert (reply.status, reply.headers["upgrade"]) == (426, "websocket")


async def test_head(server, autojump_clock):
    """HEAD is answered like GET, without a body."""
    stream = server.connect()
    for path, status in ((b"/v1/responses", b"426"), (b"/healthz", b"200")):
        await stream.send_all(b"HEAD %b HTTP/1.1\r\nhost: localhost\r\n\r\n" % path)
        answer = await stream.receive_some()
        assert answer.startswith(b"HTTP/1.1 %b " % status) and answer.endswith(b"\r\n\r\n")


async def test_a_failing_store_is_a_500(nursery, autojump_clock):
    """A store that cannot answer says what to do; nothing else breaks."""

    class Broken:
        async def get(self, response_id, owner):
            raise StoreError("The disk is full.")

    http = Server(nursery, Model(), store=Broken()).http()
    reply = await http.ask("GET", "/v1/responses/resp_1")
    assert (reply.status, reply.error["message"]) == (500, "The disk is full.")
    assert (await http.ask("GET", "/healthz")).status == 200


# --- who may come in --------------------------------------------------------------------------------------------


async def test_c09_keys(nursery, autojump_clock, caplog):
    """C09: without a good key every path but the health check is 401, upgrades too, and no key is ever logged."""
    settings = ServerSettings(keys=frozenset({"sk-right"}))
    server = Server(nursery, Model(), settings)
    http = server.http()
    for headers in ({}, {"authorization": "Bearer sk-wrong"}):
        reply = await server.http().ask("POST", "/v1/responses", b"{}", **headers)
        assert (reply.status, reply.error["code"], reply.headers["www-authenticate"]) == (
            401,
            "invalid_api_key",
            "Bearer",
        )
        assert (await http.ask("GET", "/v1/models", **headers)).status == 401
        stream = server.connect()
        await stream.send_all(WebSocket.request(**headers))
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 401 ")
    assert (await http.ask("GET", "/healthz")).status == 200
    body = b'{"model":"m","input":"hi"}'
    assert (await http.ask("POST", "/v1/responses", body, authorization="Bearer sk-right")).status == 200
    assert "sk-" not in caplog.text and "sk-" not in repr(server.settings)


async def test_owners_do_not_share(nursery, autojump_clock):
    """A response stored under one key is not found under another."""
    server = Server(nursery, Model(), ServerSettings(keys=frozenset({"sk-a", "sk-b"})))
    http = server.http()
    body = b'{"model":"m","input":"hi"}'
    response = (await http.ask("POST", "/v1/responses", body, authorization="Bearer sk-a")).json
    path = f"/v1/responses/{response['id']}"
    assert (await http.ask("GET", path, authorization="Bearer sk-b")).status == 404
    assert (await http.ask("GET", path, api_key="sk-a")).status == 200


async def test_pages(nursery, autojump_clock):
    """A listed page may call and is told so, preflight included; another page, or a rebound name, is 403."""
    origin = "https://app.example"
    server = Server(nursery, Model(), ServerSettings(allow_origins=frozenset({origin})))
    http = server.http()
    reply = await http.ask("GET", "/healthz", origin=origin)
    assert reply.headers["access-control-allow-origin"] == origin and reply.headers["vary"] == "origin"
    asked = {"access_control_request_method": "POST", "access_control_request_headers": "authorization,x-a"}
    reply = await http.ask("OPTIONS", "/v1/responses", origin=origin, **asked)
    assert (reply.status, reply.body) == (204, b"")
    assert reply.headers["access-control-allow-methods"] == "GET, POST"
    assert reply.headers["access-control-allow-headers"] == "authorization,x-a"
    for headers in ({"origin": "https://evil.example"}, {"host": "evil.example"}):
        reply = await server.http().ask("GET", "/healthz", **headers)
        assert reply.status == 403 and "access-control-allow-origin" not in reply.headers
        stream = server.connect()
        await stream.send_all(WebSocket.request(**headers))
        assert (await stream.receive_some()).startswith(b"HTTP/1.1 403 ")
    assert (await http.ask("OPTIONS", "/v1/responses")).status == 405


# --- upgrades that are none ---------------------------------------------------------------------------------------


async def test_websockets_switched_off(nursery, autojump_clock):
    """C76: an upgrade gets 426 where WebSockets are off, and the connection goes on over HTTP."""
    http = Server(nursery, Model(), ServerSettings(websocket=False)).http()
    reply = await http.ask(
        "GET", "/v1/responses", upgrade="websocket", connection="Upgrade", sec_websocket_version="13"
    )
    assert reply.status == 426 and reply.error["code"] == "upgrade_required"
    assert (await http.post(stream=True)).status == 200


@pytest.mark.parametrize(
    "path, headers, status",
    [
        ("/v1/other", {}, b"404"),
        ("/v1/responses", {"sec-websocket-version": "99"}, b"426"),
        ("/v1/responses", {"sec-websocket-version": ""}, b"400"),
        ("/v1/responses", {"sec-websocket-key": ""}, b"400"),
        ("/v1/responses", {"sec-websocket-key": "short"}, b"400"),
        ("/v1/responses", {"connection": "keep-alive"}, b"400"),
    ],
)
async def test_bad_handshakes(server, autojump_clock, path, headers, status):
    """An upgrade of another path, or one that is incomplete, is refused in the API's form."""
    stream = server.connect()
    await stream.send_all(WebSocket.request(path, **headers))
    answer = await stream.receive_some()
    assert answer.startswith(b"HTTP/1.1 %b " % status) and b'{"error":{"message":' in answer


async def test_other_upgrades_are_ignored(server, autojump_clock):
    """A POST that offers HTTP/2, as Java's client does, is answered as it is, and so is the next."""
    http = server.http()
    for _ in range(2):
        body = b'{"model":"m","input":"hi"}'
        reply = await http.ask("POST", "/v1/responses", body, upgrade="h2c", connection="Upgrade, HTTP2-Settings")
        assert reply.status == 200
