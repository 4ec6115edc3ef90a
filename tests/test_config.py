"""One option, three places: its flag, its environment variable and its key in turntape.toml."""

import datetime
import math
import os
import re
import tomllib
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result
from gguf import LLAMA, gguf

from turntape import cli, config, tables
from turntape.keys import BackendKey, find_key
from turntape.options import Listen, Model, StoreSpec, listen_options, model_options, option, take
from turntape.plan import PlannedBackend
from turntape.specs import BackendSpec, SpecError
from turntape.tables import BackendTable, ModelTable
from turntape.transport.backends.llama import LlamaBackend
from turntape.upstreams import make_backend

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No configuration but the test's own: an empty folder, no TURNTAPE_ variables."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("TURNTAPE_")]:
        monkeypatch.delenv(name)
    return tmp_path


def resolve(*flags: str, env: dict[str, str] | None = None, before: tuple[str, ...] = ()) -> tuple[Listen, Model]:
    """The options that ``turntape serve FLAGS`` would run with."""
    got: list[dict[str, Any]] = []

    @click.group()
    @click.option("--config", "config_file", type=click.Path(path_type=Path))
    @click.pass_context
    def group(context: click.Context, config_file: Path | None) -> None:
        config.use(context, config_file)

    @group.command()
    @listen_options
    @model_options
    @option("--record")
    def serve(**values: Any) -> None:
        got.append(values)

    result = CliRunner().invoke(group, [*before, "serve", *flags], env=env or {}, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return take(Listen, got[0]), take(Model, got[0])


def refused(text: str) -> str:
    """What the command line says of a turntape.toml with this text."""
    Path("turntape.toml").write_text(text)
    result = turntape("show", "turntape.toml")
    assert result.exit_code == 2, result.output
    return result.output.strip().splitlines()[-1]


def turntape(*words: str, env: dict[str, str] | None = None) -> Result:
    return CliRunner().invoke(cli.main, words, env=env or {}, catch_exceptions=False)


# --- precedence -----------------------------------------------------------------------------------------


def test_defaults_are_loopback_and_scripted() -> None:
    """With nothing configured the server is for this machine only, and needs no model."""
    listen, model = resolve()
    assert (listen.host, listen.port, listen.websocket, listen.key_file) == ("127.0.0.1", 8765, True, None)
    assert model.backend == BackendSpec("scripted")


def test_flag_over_environment_over_file_over_default() -> None:
    """Each place wins over the ones below it."""
    assert resolve()[0].port == 8765
    Path("turntape.toml").write_text("port = 1001\ngrace = 1.5\n")
    assert resolve()[0].port == 1001
    assert resolve(env={"TURNTAPE_PORT": "1002"})[0].port == 1002
    listen, _ = resolve("--port", "1003", env={"TURNTAPE_PORT": "1002"})
    assert (listen.port, listen.grace) == (1003, 1.5)


def test_every_kind_of_value_can_come_from_the_file(tmp_path: Path) -> None:
    """Numbers, booleans, lists, files and backends mean in the file what they mean as flags."""
    (tmp_path / "keys").write_text("k\n")
    Path("turntape.toml").write_text(
        'port = 0\nwebsocket = false\nallow-origin = ["https://a.example", "https://b.example"]\nkeepalive = 2\n'
        'key-file = "keys"\nbackend = "scripted:my.toml"\nstore = "memory"\nmodel = "m"\nmax-message-bytes = 4096\n'
    )
    listen, model = resolve()
    assert listen == Listen(
        host="127.0.0.1",
        port=0,
        key_file=Path("keys"),
        allow_origin=("https://a.example", "https://b.example"),
        websocket=False,
        max_message_bytes=4096,
        compression="auto",
        grace=30.0,
        keepalive=2.0,
        log="warning",
    )
    assert model == Model(BackendSpec("scripted", Path("my.toml")), "m", None, StoreSpec(None))


def test_every_kind_of_value_can_come_from_the_environment() -> None:
    """The same in environment variables, a list with spaces between."""
    listen, model = resolve(
        env={
            "TURNTAPE_ALLOW_ORIGIN": "https://a.example https://b.example",
            "TURNTAPE_WEBSOCKET": "false",
            "TURNTAPE_BACKEND": "chat+http://127.0.0.1:8000/v1",
            "TURNTAPE_GRACE": "0",
        }
    )
    assert listen.allow_origin == ("https://a.example", "https://b.example")
    assert (listen.websocket, listen.grace) == (False, 0.0)
    assert model.backend == BackendSpec("chat", url="http://127.0.0.1:8000/v1")


def test_config_names_another_file(tmp_path: Path) -> None:
    """--config reads that file, and turntape.toml is then not read."""
    Path("turntape.toml").write_text("port = 1\n")
    (tmp_path / "other.toml").write_text("grace = 2\n")
    listen, _ = resolve(before=("--config", "other.toml"))
    assert (listen.port, listen.grace) == (8765, 2.0)


# --- what is refused, and how -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 1", 'turntape.toml: "prot" (an integer) is not an option; did you mean "port"?'),
        ("max_message_bytes = 4096", 'did you mean "max-message-bytes"?'),
        ('port = "8765"', 'turntape.toml: "port" is a string, it must be an integer, such as port = 8765'),
        ("port = true", '"port" is a boolean, it must be an integer'),
        ("port = 70000", 'turntape.toml: "port": 70000 is not in the range'),
        ("websocket = 1", '"websocket" is an integer, it must be a boolean, such as websocket = true'),
        ('allow-origin = "https://a"', '"allow-origin" is a string, it must be a list of strings'),
        ("allow-origin = [1]", '"allow-origin" is a list, it must be a list of strings'),
        ('allow-origin = ["a.example"]', "\"allow-origin\": 'a.example' is no origin; write scheme://host"),
        ('log = "debug"', "\"log\": 'debug' is not one of"),
        ("grace = nan", '"grace": nan seconds: it must be 0 or more'),
        ("keepalive = 0", '"keepalive": 0 seconds: it must be above 0'),
        ('backend = "gpt"', "is none of: scripted, scripted:FILE, chat+URL"),
        ("model = 1979-05-27", '"model" is a date or time, it must be a string'),
        ("[serve]\nport = 1", '"serve" is a table; options stand at the top level'),
        ("[model.fast]\nport = 1", "did you mean [models.NAME]?"),
        ("models = 1", '"models" is an integer, it must be tables, such as [models.mine]'),
        ("[models]\nfast = 'x'", '[models]: "fast" is a string, it must be a table of its own: [models.fast]'),
        (
            "[models.fast]\ncontext_window = 1",
            '[models.fast]: "context_window" (an integer) is not known; did you mean',
        ),
        (
            "[models.fast]\ncontext-window = '1'",
            '"context-window" is a string, it must be an integer above 0, such as context-window = 131072',
        ),
        ("[models.fast]\ntemperature = 3", '"temperature" is an integer out of range, it must be a number from 0 to 2'),
        ("[models.fast]\nrenderer = 'x'", "it must be one of auto, harmony, template"),
        ("[models.fast]\nbackend = 'nowhere'", "[models.fast]: \"backend\": 'nowhere' is none of: scripted, "),
        ("[models.'a/b']\nfallback = 'c'", '[models."a/b"]: "fallback": neither a model of this file nor a backend'),
        ("[models.fast]\nfallback = 'fast'", "\"fallback\" cannot be 'fast'; name another model, or a backend"),
        ("[models.fast]\nfallback = []", '"fallback" is a list, it must be a string, or a list of strings'),
        ("[backends.gpu]\n", '[backends.gpu]: "spec" is missing; write spec = "chat+http://127.0.0.1:8000/v1"'),
        ("[backends.gpu]\nspec = 'gpu'", "[backends.gpu]: \"spec\": 'gpu' is none of: scripted, "),
        ("[backends.'a b']\nspec = 'vllm'", "[backends]: 'a b' is no name; letters, digits"),
        ("[backends.a]\nspec = 'vllm'\nkey = 'sk-secret'", 'keys do not belong here; write key-env = "VARIABLE"'),
        ("[backends.a]\nspec = 'vllm'\nkey-env = 'sk-secret'", '"key-env" is a string, it must be the name of an env'),
        ("[backends.a]\nspec = 'vllm'\nkey-env = 'A'\nkey-file = 'b'", "are both given; leave one out"),
        (
            "[backends.a]\nspec = 'vllm'\nheaders = { Authorization = 'Bearer sk-secret' }",
            "Authorization looks like a key, which does not belong here",
        ),
        ("[backends.a]\nspec = 'vllm'\nheaders = { X-Title = \"a\\nb\" }", "'X-Title' cannot be sent"),
        ("[backends.a]\nspec = 'vllm'\nheaders = { Host = 'b' }", "'Host' cannot be sent"),
        ("[backends.a]\nspec = 'vllm'\nheaders = { Upgrade = 'b' }", "'Upgrade' cannot be sent"),
        ("[models.a]\nfamily = 'llama'", '"family" is a string, it must be one of minimax-m2, '),
        (
            "[models.a]\ntemplate-variables = { tools = 5 }",
            '"template-variables" is a table, it must be a table of strings',
        ),
        (
            "[models.a]\ntemplate-variables = { a = [1] }",
            '"template-variables" is a table, it must be a table of strings',
        ),
        ("[backends.a]\nspec = 'vllm'\nanswer-timeout = 0", "it must be a number of seconds above 0"),
        ("[backends.a]\nspec = 'chat+http://u:sk-secret@h/v1'", "the URL holds a user name or key"),
        ('backend-key = "sk-secret"', "keys do not belong here"),
        ('config = "x.toml"', "cannot name another one"),
        ("port = ", "turntape.toml: not valid TOML: Invalid value"),
        ('key-file = "nowhere"', "\"key-file\": File 'nowhere' does not exist"),
    ],
)
def test_a_wrong_file_is_refused_by_name(text: str, says: str) -> None:
    """Exit code 2, one line that names file, key, kind and cure, whatever the command."""
    message = refused(text)
    assert says in message
    assert "sk-secret" not in message


def test_a_file_that_is_not_text_is_refused() -> None:
    """Bytes that are not UTF-8 are named, not a traceback."""
    Path("turntape.toml").write_bytes(b"port = 1 # \xff\n")
    result = turntape("show", "turntape.toml")
    assert result.exit_code == 2
    assert "turntape.toml: byte 11 is not UTF-8" in result.output


def test_a_missing_file_is_refused() -> None:
    """A --config that is not there is an error; a missing turntape.toml is not."""
    result = turntape("--config", "nowhere.toml", "verify", "x")
    assert result.exit_code == 2
    assert "nowhere.toml: cannot be read (No such file or directory)" in result.output


def test_a_folder_of_that_name_is_refused() -> None:
    """A turntape.toml that is no file is not passed over in silence."""
    Path("turntape.toml").mkdir()
    result = turntape("verify", "x")
    assert result.exit_code == 2
    assert "turntape.toml: cannot be read (Is a directory)" in result.output


def test_an_unknown_environment_variable_is_a_warning() -> None:
    """A misspelt variable is named with the one that was meant; those that are no options are known too."""
    others = {"TURNTAPE_CONFIG": "", "TURNTAPE_API_KEY": "k", "TURNTAPE_BACKEND_KEY": "k", "TURNTAPE_TEST_CACHE": "x"}
    result = turntape("show", "nowhere", env={"TURNTAPE_PROT": "1", "TURNTAPE_ELSE_WHERE": "1", **others})
    assert "warning: TURNTAPE_PROT is set, and no option reads it; did you mean TURNTAPE_PORT?\n" in result.output
    assert "warning: TURNTAPE_ELSE_WHERE is set, and no option reads it\n" in result.output
    assert result.output.count("warning: ") == 2


@pytest.mark.parametrize(
    "value", ["foo", "https://a.example/", "https://", "https://u@a.example", "null", "https://a b"]
)
def test_a_wrong_origin_is_refused(value: str) -> None:
    """--allow-origin takes what a browser sends as Origin, and nothing that could never match."""
    result = turntape("serve", f"--allow-origin={value}")
    assert result.exit_code == 2
    assert "is no origin; write scheme://host or scheme://host:port, nothing after it, or *" in result.output


def test_an_origin_is_taken_as_browsers_write_it() -> None:
    """Schemes and hosts in any case, ports, IPv6 addresses, and * for every page."""
    values = ["https://A.example:8443", "http://[::1]:3000", "vscode-webview://abc", "*"]
    listen, _ = resolve(*(f"--allow-origin={value}" for value in values))
    assert listen.allow_origin == ("https://a.example:8443", "http://[::1]:3000", "vscode-webview://abc", "*")


def test_a_wrong_environment_variable_is_named() -> None:
    """The message says that the value came from the environment."""
    result = turntape("serve", env={"TURNTAPE_PORT": "abc"})
    assert result.exit_code == 2
    assert "'--port', from TURNTAPE_PORT: 'abc' is not a valid whole number" in result.output


@pytest.mark.parametrize(
    "value",
    [
        "gpt-5",
        "scripted:",
        "chat",
        "chat+ftp://x/v1",
        "http://x/v1",
        "",
        "llama",
        "llama:",
        "azure",
        "chat+ws://x/v1",
        "cerebras+",
        "chat+http://u:sk-secret@h/v1",
        "responses+wss://u:sk-secret@h/v1",
        "ftp://u:sk-secret@h/v1",
    ],
)
def test_a_wrong_backend_is_refused(value: str) -> None:
    """--backend takes certain forms and names; a key in the URL is refused and not repeated."""
    result = turntape("serve", f"--backend={value}")
    assert result.exit_code == 2
    assert "Invalid value for '--backend'" in result.output
    assert "sk-secret" not in result.output


def test_a_bare_url_as_backend_is_completed() -> None:
    """A URL without what speaks there is refused with the form that was probably meant; the URL may hold a key."""
    result = turntape("serve", "--backend=https://u:sk-secret@host/v1")
    assert "write chat+https://… for a chat-completions server at that URL" in result.output
    assert "sk-secret" not in result.output


@pytest.mark.parametrize(
    ("value", "spec"),
    [
        ("scripted", BackendSpec("scripted")),
        ("scripted:my.toml", BackendSpec("scripted", Path("my.toml"))),
        ("chat+https://h/v1?k=sk-secret", BackendSpec("chat", url="https://h/v1?k=sk-secret")),
        ("tokens+http://h:8000", BackendSpec("tokens", url="http://h:8000")),
        ("responses+wss://h/v1", BackendSpec("responses", url="wss://h/v1")),
        ("llama:a b.gguf", BackendSpec("llama", Path("a b.gguf"))),
        ("cerebras", BackendSpec("preset", name="cerebras")),
        ("vllm+http://gpu:9000/v1", BackendSpec("preset", name="vllm", url="http://gpu:9000/v1")),
    ],
)
def test_every_form_of_a_backend(value: str, spec: BackendSpec) -> None:
    """What --backend takes; shown again it is what was written, without a query, which may hold a key."""
    assert resolve("--backend", value)[1].backend == spec
    if spec != BackendSpec("scripted"):
        assert str(spec) == value.partition("?")[0]


def test_a_backend_of_the_file_is_named_like_any_other() -> None:
    """On the command line, at the top of the file and in its model tables; it stands before a preset of that name."""
    Path("turntape.toml").write_text(
        'backend = "gpu"\n[backends.gpu]\nspec = "vllm+http://gpu:8000/v1"\n[backends.cerebras]\nkey-file = "k"\n'
    )
    assert resolve()[1].backend == BackendSpec("table", name="gpu")
    assert resolve("--backend", "cerebras")[1].backend == BackendSpec("table", name="cerebras")
    assert resolve("--backend", "ollama")[1].backend == BackendSpec("preset", name="ollama")


def test_the_tables_are_read_whole(tmp_path: Path) -> None:
    """Every key of both tables, and what it becomes."""
    Path("turntape.toml").write_text(
        "[backends.gpu]\nspec = 'tokens+http://gpu:8000'\ntokenizer = 'qwen'\nkey-env = 'GPU_KEY'\n"
        "headers = { X-Team = 'a' }\n"
        "connect-timeout = 1\nanswer-timeout = 2.5\nsilence-timeout = 3\nidle-connections = 4\nidle-timeout = 5\n"
        "[models.fast]\nbackend = 'gpu'\nmodel = 'openai/gpt-oss-120b'\ncontext-window = 131072\nmax-output = 4096\n"
        "renderer = 'template'\nfamily = 'glm-4'\ntemplate-variables = { enable_thinking = false, depth = 2 }\n"
        "temperature = 1\ntop-p = 0.9\nmax-output-tokens = 2048\nreasoning-effort = 'low'\n"
        "fallback = ['slow', 'ollama']\n[models.slow]\n"
    )
    read = config.reread(Path("turntape.toml"))
    assert read.backends["gpu"] == BackendTable(
        name="gpu",
        spec=BackendSpec("tokens", url="http://gpu:8000"),
        path=Path("turntape.toml"),
        tokenizer=Path("qwen"),
        key_env="GPU_KEY",
        headers=(("X-Team", "a"),),
        connect_timeout=1,
        answer_timeout=2.5,
        silence_timeout=3,
        idle_connections=4,
        idle_timeout=5,
    )
    assert read.models["fast"] == ModelTable(
        name="fast",
        backend=BackendSpec("table", name="gpu"),
        model="openai/gpt-oss-120b",
        context_window=131072,
        max_output=4096,
        renderer="template",
        family="glm-4",
        template_variables=(("depth", 2), ("enable_thinking", False)),
        temperature=1,
        top_p=0.9,
        max_output_tokens=2048,
        reasoning_effort="low",
        fallback=("slow", "ollama"),
    )
    assert read.models["slow"] == ModelTable(name="slow")


ODD: list[Any] = [True, 0, 1, -1, 10**30, 1.5, math.nan, math.inf, "", "x", "a b", "\n", "é", "http://h", "llama:"]
ODD += [[], [1], ["x"], ["", "x"], {}, {"a": 1}, {"a": "b"}, {"": ""}, {"a\n": "b"}, datetime.date(2026, 1, 1)]


@pytest.mark.parametrize("table", ["backends", "models"])
def test_any_value_in_any_key_is_taken_or_refused_by_name(table: str) -> None:
    """Whatever stands in a table, the answer is a table or one sentence that names it; never a traceback."""
    keys = {"backends": tables._BACKEND, "models": tables._MODEL}[table]
    n_refused = 0
    for key in keys:
        for value in ODD:
            entry = {"spec": "ollama", key: value} if table == "backends" else {key: value}
            try:
                tables.read_tables(Path("t.toml"), {table: {"mine": entry}})
            except tables.ConfigError as exc:
                n_refused += 1
                assert exc.message.startswith(f't.toml: [{table}.mine]: "{key}"'), exc.message
                assert "\n" not in exc.message
    assert n_refused > 10 * len(keys)
    for value in ODD:
        for values in ({table: value}, {table: {"mine": value}}, {table: {str(value): {}}}):
            try:
                tables.read_tables(Path("t.toml"), values)
            except tables.ConfigError as exc:
                assert f"{table}" in exc.message and "\n" not in exc.message


def test_a_model_that_no_table_has_is_refused_at_the_start() -> None:
    """--model names one of the tables where there are any."""
    Path("turntape.toml").write_text('[models.fast]\nbackend = "ollama"\n')
    result = turntape("serve", "--model", "slow")
    assert result.exit_code == 2
    assert "--model: 'slow' is not among the [models] of turntape.toml; known are: fast" in result.output


# --- keys -------------------------------------------------------------------------------------------------


def found(spec: str, *, chosen: bool = True, environment: dict[str, str], **table: Any) -> BackendKey:
    planned = PlannedBackend(BackendTable(name="b", spec=BackendSpec.parse(spec), **table), chosen=chosen)
    return find_key(planned, environment)


def test_a_key_goes_only_where_its_owner_pointed_it(tmp_path: Path) -> None:
    """The common key is that of --backend; a preset's own variable is for its own hosts; a table's own key comes first."""
    both = {"TURNTAPE_BACKEND_KEY": "common", "CEREBRAS_API_KEY": "own", "MINE": "mine"}
    assert found("chat+http://h/v1", environment=both).value == "common"
    assert found("chat+http://h/v1", chosen=False, environment=both).value is None
    assert found("cerebras", chosen=False, environment=both) == BackendKey("own", "CEREBRAS_API_KEY")
    assert found("cerebras", environment=both).value == "common"
    assert found("cerebras", environment=both, key_env="MINE").value == "mine"
    elsewhere = found("cerebras+http://elsewhere/v1", chosen=False, environment=both)
    assert elsewhere.value is None and "has no key" in elsewhere.missing
    file = tmp_path / "key"
    file.write_text("# mine\nfrom-file\n")
    file.chmod(0o600)
    assert found("cerebras", environment=both, key_file=file) == BackendKey("from-file")


def test_a_missing_key_is_named_and_a_local_server_needs_none() -> None:
    """What is missing says which variable to set; it is shown nowhere else, and a key not at all."""
    assert "set CEREBRAS_API_KEY" in found("cerebras", environment={}).missing
    assert found("cerebras", environment={}, key_env="MINE").missing.startswith("has no key: set MINE")
    assert found("ollama", environment={}) == found("vllm", environment={}) == BackendKey()
    assert "own-key" not in repr(found("cerebras", environment={"CEREBRAS_API_KEY": "own-key"}))


# --- documentation ----------------------------------------------------------------------------------------


def test_the_documented_options_are_the_options() -> None:
    """docs/configuration.md lists every option of every command, with its variable, and no other."""
    text = (ROOT / "docs" / "configuration.md").read_text()
    documented = set(re.findall(r"^\| `--([a-z-]+)[^|]*` \| `(TURNTAPE_[A-Z_]+)` \|", text, re.MULTILINE))
    options = {
        (key, str(parameter.envvar))
        for by_key in config.configurable(cli.main).values()
        for key, parameter in by_key.items()
    }
    assert documented == options


def test_engine_settings_of_a_model_file_reach_its_backend(tmp_path: Path) -> None:
    """Window, slots, threads and GPU layers are those of the table; other backends refuse the keys by name."""
    model = tmp_path / "model.gguf"
    model.write_bytes(gguf(LLAMA))
    path = tmp_path / "turntape.toml"
    path.write_text(f"[backends.mine]\nspec = 'llama:{model}'\nwindow = 2048\nslots = 2\nthreads = 3\ngpu-layers = 0\n")
    read = tables.read_tables(path, tomllib.loads(path.read_text()))
    backend = make_backend(PlannedBackend(read.backends["mine"]), None)
    assert isinstance(backend, LlamaBackend)
    settings = backend.settings
    assert (settings.n_ctx, settings.n_slots, settings.threads, settings.n_gpu_layers) == (2048, 2, 3, 0)
    with pytest.raises(tables.ConfigError, match='"slots" is for llama:FILE only'):
        tables.read_tables(path, {"backends": {"b": {"spec": "chat+http://127.0.0.1:1/v1", "slots": 2}}})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("cerebas", "did you mean 'cerebras'?"),
        ("CEREBRAS", "did you mean 'cerebras'?"),
        ("chat", "chat needs a URL: chat+http"),
        ("llama:", "llama needs a model file"),
    ],
)
def test_a_backend_that_is_nearly_named_is_named(text: str, says: str) -> None:
    """A slip in ``--backend`` is answered with what was meant."""
    with pytest.raises(SpecError, match=re.escape(says)):
        BackendSpec.parse(text)
