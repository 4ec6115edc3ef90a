"""Model servers that lie: what they send can spoil their own answer, and nothing else."""

import json
from pathlib import Path
from typing import Any

import click
import orjson
import pytest
from backends.chat_asking import asking, said, start
from chat_server import DONE, Reply, chunk, refusing, saying, sse, usage

from turntape.core.seam import Finish, Usage
from turntape.keys import MAX_BYTES, read_keys
from turntape.transport.backends.base import BackendError
from turntape.transport.backends.chat_errors import Refusals
from turntape.transport.backends.chat_tools import ToolNames
from turntape.transport.backends.responses_errors import failure_in
from turntape.transport.backends.responses_stream import EventReader
from turntape.transport.backends.tokens_servers import LlamaCppReader, SglangReader, VllmReader
from turntape.transport.http_connections import HttpError
from turntape.transport.http_target import Target

HUGE = [2**53 + 1, 2**63, 2**64 - 1, 10**30]


@pytest.mark.parametrize("count", HUGE)
async def test_a_count_that_no_json_of_ours_can_hold_is_none(count: int) -> None:
    """A chat server's usage beyond all measure counts as 0, and the answer stands."""
    counts = json.dumps(usage(count, 4)).encode()
    async with asking("", saying(chunk(content="a"), chunk("stop"), counts)) as (_, backend):
        increments = await said(backend, start("m", "hi"))
    assert increments[-1] == Finish("stop", Usage(0, 4))


@pytest.mark.parametrize("count", HUGE)
def test_counts_of_other_servers(count: int) -> None:
    """So does that of a Responses server, and of servers that take token ids."""
    reader = EventReader(ToolNames(), Refusals("here"))
    counts = {"input_tokens": count, "output_tokens": 4}
    reader.feed([json.dumps({"type": "response.completed", "response": {"usage": counts}}).encode()])
    assert reader.end() == (Finish("stop", Usage(0, 4)),)
    vllm = VllmReader().read({"choices": [], "usage": {"prompt_tokens": count, "completion_tokens": 4}})
    assert (vllm.input_tokens, vllm.output_tokens) == (0, 4)
    assert SglangReader().read({"meta_info": {"prompt_tokens": count}}).input_tokens is None
    assert LlamaCppReader().read({"stop": True, "tokens_evaluated": count}).input_tokens is None


@pytest.mark.parametrize("token", [-1, 2**31, 2**63, 10**30, 1.5, True, None, "7"])
def test_what_is_no_token_id(token: Any) -> None:
    """An id that no vocabulary can have says nothing, and does not end the answer."""
    assert VllmReader().read({"choices": [{"token_ids": [token, 5]}]}).ids == [5]
    assert SglangReader().read({"output_ids": [token, 5]}).ids == [5]
    assert LlamaCppReader().read({"tokens": [token, 5]}).ids == [5]


@pytest.mark.parametrize("loc", [5, 1.5, True, {"a": 1}, "body", None, [None, [1], {"a": 1}]])
async def test_a_detail_that_is_nowhere(loc: Any) -> None:
    """A refusal whose details have a place of the wrong kind is a refusal with its message."""
    async with asking("", refusing(400, {"detail": [{"loc": loc, "msg": "No good"}]})) as (_, backend):
        with pytest.raises(BackendError, match="No good") as caught:
            await said(backend, start("m", "hi"))
    assert (caught.value.code, caught.value.status) == ("invalid_prompt", 400)


@pytest.mark.parametrize("depth", [1, 2, 1000])
async def test_an_error_within_errors(depth: int) -> None:
    """However deep an error is wrapped in others, it is read; before the first token and after it."""
    body = b'{"error":' * depth + b'"No good"' + b"}" * depth
    async with asking("", refusing(400, body)) as (_, backend):
        with pytest.raises(BackendError, match="No good"):
            await said(backend, start("m", "hi"))
    async with asking("", lambda request: Reply([sse(chunk(content="a")), sse(body), DONE])) as (_, backend):
        with pytest.raises(BackendError, match="No good"):
            await said(backend, start("m", "hi"))


def test_a_key_that_is_said_to_be_the_field_at_fault() -> None:
    """A server that repeats the key as ``param`` does not show it to the client."""
    refusals = Refusals("here", "a-plain-key")
    body = {"error": {"message": "No A-Plain-Key", "param": "a-plain-key " + "x" * 10_000}}
    error = refusals.refused(400, {}, orjson.dumps(body))
    assert error.param is not None and len(error.param) <= 500
    assert "a-plain-key" not in (error.param + str(error)).lower()


def test_a_redirect_to_a_host_named_like_the_key() -> None:
    """Nor does one that redirects to a host of that name, which comes in lower case."""
    error = Refusals("here", "A-Plain-Key").failed(
        HttpError("redirects to a-plain-key.example (HTTP 302)", cure="Try.")
    )
    assert "a-plain-key" not in str(error).lower()


@pytest.mark.parametrize(
    ("written", "passed"),
    [("7", "7"), ("0.5", "0.5"), ("....", None), ("1.2.3", None), ("9999999999", None), ("-5", None), ("NaN", None)],
)
def test_how_long_to_wait(written: str, passed: str | None) -> None:
    """Only a number of seconds that a client can wait is passed on."""
    error = Refusals("here").refused(429, {"retry-after": written}, b"{}")
    assert error.retry_after == passed


@pytest.mark.parametrize("status", [600, 999, 10**20])
def test_a_status_that_is_none(status: int) -> None:
    """A status that HTTP does not have becomes 502."""
    assert Refusals("here").refused(min(status, 999), {}, b"").status == 502
    assert failure_in(Refusals("here"), {"type": "error", "status": status, "error": {"message": "m"}}).status == 502


@pytest.mark.parametrize("host", ["a..b", ".x", "a" * 64, f"x.{'b' * 5000}.y"])
def test_a_host_that_no_name_can_be(host: str) -> None:
    """A host that the resolver cannot even be asked for is refused with the URL, not at the first request."""
    with pytest.raises(ValueError, match="1 to 63 characters"):
        Target.parse(f"http://{host}/v1")
    assert Target.parse("http://models.example./v1").host == "models.example."


def test_a_file_of_keys_without_an_end(tmp_path: Path) -> None:
    """What is far too long to be keys is not read to its end."""
    path = tmp_path / "keys"
    path.write_bytes(b"key\n" * (MAX_BYTES // 4))
    assert len(read_keys(path, option="--key-file")) == MAX_BYTES // 4
    with pytest.raises(click.UsageError, match="longer than"):
        read_keys(Path("/dev/zero"), option="--key-file")
