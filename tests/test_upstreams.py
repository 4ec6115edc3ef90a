"""What a backend's name becomes when it is opened, and which backends stay open when the tables change."""

import os
from pathlib import Path
from typing import Any

import click
import pytest
import trio
import trio.testing

from turntape.options import Model
from turntape.plan import plan
from turntape.specs import BackendSpec
from turntape.tables import BackendTable, ModelTable, Tables
from turntape.transport.backends.chat import ChatBackend
from turntape.transport.backends.responses import ResponsesBackend
from turntape.transport.backends.scripted import ScriptedBackend
from turntape.transport.backends.tokens import TokensBackend
from turntape.transport.http_connections import Connections, HttpError
from turntape.transport.router import RouteTable
from turntape.upstreams import Keyless, Upstreams

ENVIRONMENT = {"CEREBRAS_API_KEY": "c-key", "OPENAI_API_KEY": "o-key", "AZURE_OPENAI_API_KEY": "a-key"}


def options(backend: str = "scripted", model: str = "") -> Model:
    return Model(BackendSpec.parse(backend), model, None)


async def opened(backend: str, **table: Any) -> Any:
    """The backend that is made of a name, or of a table with that ``spec``."""
    upstreams = Upstreams(ENVIRONMENT)
    spec = BackendSpec.parse(backend)
    tables = Tables(None, {"b": BackendTable(name="b", spec=spec, **table)})
    routes = await upstreams.route(plan(Model(BackendSpec("table", name="b"), "m", None), tables))
    [upstream] = routes.upstreams
    return upstream.backend


async def test_every_name_becomes_its_backend() -> None:
    """Presets are asked in the way that suits agents best, at their own address or at the one that is given."""
    cerebras = await opened("cerebras")
    assert isinstance(cerebras, ChatBackend)
    assert (cerebras.target.where, cerebras.key) == ("api.cerebras.ai", "c-key")
    openai = await opened("openai")
    assert isinstance(openai, ResponsesBackend)
    assert (openai.target.where, openai.row.name, openai.key) == ("api.openai.com", "openai", "o-key")
    azure = await opened("azure+https://mine.openai.azure.com/openai/v1")
    assert isinstance(azure, ResponsesBackend) and azure.row.key_header == "api-key"
    vllm = await opened("vllm+http://gpu:8000/v1")
    assert isinstance(vllm, ChatBackend) and (vllm.target.where, vllm.preset) == ("gpu:8000", "vllm")
    plain = await opened("chat+https://api.openai.com/v1")
    assert isinstance(plain, ChatBackend)
    assert isinstance(await opened("tokens+http://gpu:8000"), TokensBackend)
    socket = await opened("responses+wss://host/v1", server="turntape", store=True)
    assert isinstance(socket, ResponsesBackend) and socket.store and socket.row.native
    assert isinstance(await opened("scripted"), ScriptedBackend)
    assert isinstance(await opened("groq"), Keyless)


async def test_a_model_s_folder_goes_to_the_backend_that_reads_it(tmp_path: Path) -> None:
    """A folder without a tokenizer ends the command, and says which folder."""
    with pytest.raises(click.UsageError, match=r".* holds no tokenizer\.json"):
        await opened("tokens+http://gpu:8000", tokenizer=tmp_path)
    (tmp_path / "tokenizer.json").write_text("{}")
    assert (await opened("tokens+http://gpu:8000", tokenizer=tmp_path)).tokenizer_path == tmp_path


async def test_headers_go_into_the_handshake_of_a_socket() -> None:
    """As they go with each request over HTTP; they are shown as little as a key."""
    backend = await opened("responses+ws://h/v1", headers=(("X-Team", "blue"),))
    asked: list[bytes] = []

    async def connect(host: str, port: int) -> trio.abc.Stream:
        ours, theirs = trio.testing.memory_stream_pair()
        nursery.start_soon(refuse, theirs)
        return ours

    async def refuse(stream: trio.abc.Stream) -> None:
        asked.append(bytes(await stream.receive_some()))
        await stream.aclose()

    backend._sockets.connections = Connections(connect=connect)
    async with trio.open_nursery() as nursery:
        with pytest.raises(HttpError):
            await backend._sockets.take(None)
    assert asked[0].startswith(b"GET /v1/responses ") and b"\r\nX-Team: blue\r\n" in asked[0]
    assert "blue" not in repr(backend)


async def test_limits_and_headers_are_those_of_the_table() -> None:
    """Time limits and pools; connections over TLS are kept longer, since the next server is far."""
    backend = await opened(
        "chat+http://h/v1",
        headers=(("X-Team", "a"),),
        connect_timeout=1,
        answer_timeout=2,
        silence_timeout=3,
        idle_connections=4,
    )
    client = backend.client
    assert (client.head_timeout_s, client.silence_s, client.more) == (2, 3, (("X-Team", "a"),))
    assert (client.connections.connect_timeout_s, client.connections.n_idle) == (1, 4)
    near, far = client.connections.idle_s, (await opened("cerebras")).client.connections.idle_s
    assert near < 5 < far
    assert (await opened("cerebras", idle_timeout=7)).client.connections.idle_s == 7


@pytest.mark.parametrize(
    ("backend", "table", "says"),
    [
        ("scripted:nowhere.toml", {}, "--backend: nowhere.toml"),
        ("llama:nowhere.gguf", {}, "nowhere.gguf"),
        ("chat+http://h:0/v1", {}, "the URL names port 0"),
        ("tokens+http://h", {"server": "ollama"}, "the kind of server must be"),
    ],
)
async def test_what_cannot_be_opened_is_said(
    backend: str, table: dict[str, Any], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Used wrongly: exit code 2, with the file or the field at fault."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.UsageError) as refused:
        await opened(backend, **table)
    assert says in refused.value.message


async def test_a_file_that_is_no_model_is_said(tmp_path: Path) -> None:
    """The first bytes of a model file are looked at before anything is loaded."""
    (tmp_path / "model.gguf").write_bytes(b"not a model")
    with pytest.raises(click.UsageError, match=r"model\.gguf"):
        await opened(f"llama:{tmp_path / 'model.gguf'}")


def tables(*models: ModelTable) -> Tables:
    return Tables(Path("turntape.toml"), {}, {model.name: model for model in models})


def backends(routes: RouteTable) -> list[Any]:
    return [route.upstream.backend for route in routes.routes.values()]


async def test_what_did_not_change_stays_open() -> None:
    """One backend for all models that name it, the same after a reload; another key makes it another backend."""
    environment = dict(ENVIRONMENT)
    upstreams = Upstreams(environment)
    cerebras, ollama = BackendSpec.parse("cerebras"), BackendSpec.parse("ollama")
    first = await upstreams.route(
        plan(
            options(),
            tables(
                ModelTable(name="a", backend=cerebras, fallback=("c",)),
                ModelTable(name="b", backend=cerebras, temperature=0.5),
                ModelTable(name="c", backend=ollama),
            ),
        )
    )
    assert len(first.upstreams) == 2
    assert upstreams.key_variables == {"CEREBRAS_API_KEY"}
    assert first.routes["a"].fallbacks[0].upstream is first.routes["c"].upstream
    again = await upstreams.route(plan(options(), tables(ModelTable(name="a", backend=cerebras, top_p=1))))
    assert again.upstreams == [first.routes["a"].upstream]
    environment["CEREBRAS_API_KEY"] = "another"
    rotated = await upstreams.route(plan(options(), tables(ModelTable(name="a", backend=cerebras))))
    assert rotated.upstreams[0] is not first.routes["a"].upstream
    assert backends(rotated)[0].key == "another"


async def test_what_templates_are_told_goes_to_those_that_have_one() -> None:
    """Family and variables of a model reach its backend; another kind of backend refuses them, and says for which they are."""
    told: dict[str, Any] = {"family": "glm-4", "template_variables": (("enable_thinking", False),)}
    tokens, chat = BackendSpec.parse("tokens+http://gpu:8000"), BackendSpec.parse("chat+http://gpu:8000")
    models = tables(ModelTable(name="a", backend=tokens, **told), ModelTable(name="b", backend=tokens))
    one, other = backends(await Upstreams({}).route(plan(options(), models)))
    assert (one.family, one.variables) == ("glm-4", {"enable_thinking": False})
    assert (other.family, other.variables) == ("", {})
    for key, value in told.items():
        with pytest.raises(click.UsageError) as refused:
            await Upstreams({}).route(plan(options(), tables(ModelTable(name="m", backend=chat, **{key: value}))))
        assert f'"{key.replace("_", "-")}"' in refused.value.message
        assert "tokens+URL" in refused.value.message


async def test_a_key_that_does_not_come_stops_nobody_else(tmp_path: Path) -> None:
    """Whoever waits for a key file that is a pipe without a writer waits alone, and can be called off."""
    pipe = tmp_path / "key"
    os.mkfifo(pipe)
    with trio.move_on_after(0.2) as scope:
        await opened("chat+http://h/v1", key_file=pipe)
    assert scope.cancelled_caught
    os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))  # lets the thread go


async def test_a_renderer_makes_another_backend() -> None:
    """Two models at one server that takes tokens may be rendered in two ways."""
    spec = BackendSpec.parse("tokens+http://gpu:8000")
    routes = await Upstreams({}).route(
        plan(
            options(),
            tables(
                ModelTable(name="a", backend=spec, renderer="harmony"),
                ModelTable(name="b", backend=spec, renderer="template"),
            ),
        )
    )
    assert [backend.renderer for backend in backends(routes)] == ["harmony", "template"]


async def test_models_without_a_backend_use_the_one_that_is_chosen() -> None:
    """--backend stands behind every table that names none; a table that names the same one shares it."""
    same = tables(ModelTable(name="a"), ModelTable(name="b", backend=BackendSpec.parse("ollama")))
    routes = await Upstreams({}).route(plan(options("ollama"), same))
    assert len(routes.upstreams) == 1
    assert routes.listed == ("a", "b")


async def test_without_tables_names_pass() -> None:
    """--model is listed first, then a script's own names; any other name is sent as it is."""
    routes = await Upstreams({}).route(plan(options("scripted", "mine"), Tables()))
    assert routes.listed == ("mine", "scripted")
    assert routes.route("whatever").model == ""


async def test_any_other_name_may_have_a_table() -> None:
    """A table "*" takes what no other takes, and is not listed."""
    routes = await Upstreams({}).route(plan(options(), tables(ModelTable(name="a"), ModelTable(name="*"))))
    assert routes.listed == ("a",)
    assert routes.route("whatever").name == "*"
    assert routes.route("a").model == "a"
