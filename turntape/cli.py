"""The commands: what they take, what they print, and what their exit code says."""

import os
import sys
from pathlib import Path
from typing import Any

import click
from attrs import evolve
from click.core import ParameterSource

from . import __version__, config
from .ledgers import LedgerSpec, by_option, ledger_option, since_option
from .options import (
    EXISTING_FILE,
    FILE,
    KINDS_OF_PROSE,
    Listen,
    Model,
    ReportFile,
    Secrets,
    StoreSpec,
    WholeNumber,
    backend_options,
    json_option,
    listen_options,
    model_options,
    option,
    secret_options,
    secret_values,
    stub_options,
    tables_of,
    take,
)

_EPILOG = """\b
Each option is also a key of turntape.toml (port = 8765) and an environment
variable (TURNTAPE_PORT). A flag wins over the environment, the environment
over the file.

\b
Exit codes: 0 good; 1 the answer is no (a divergence, a miss, an unused take
under --strict, an agent that never connected, a model that doctor finds to be
unusable); 2 used wrongly; 3 the environment failed (a port in use, a store
that cannot be opened, a program that is not there, a drive that nobody
answered).
"""

FIXTURES = click.argument("fixtures", metavar="FIXTURE...", nargs=-1, required=True, type=EXISTING_FILE)


class Command(click.Command):
    """A command that knows where --config belongs."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except click.BadOptionUsage as exc:
            if exc.option_name == "--json" and self.name == "drive":
                raise click.UsageError(ReportFile.WANTED, ctx) from None
            raise
        except click.NoSuchOption as exc:
            if exc.option_name == "--config":
                raise click.UsageError(
                    f"--config goes before the command: turntape --config FILE {self.name}", ctx
                ) from None
            raise


class AroundAgent(Command):
    """A command that takes files, and behind "--" an agent to be started."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        own, agent = args, list[str]()
        if "--" in args:
            at = args.index("--")
            own, agent = args[:at], args[at + 1 :]
            if not agent:
                raise click.UsageError("there is no agent behind --", ctx)
        rest = super().parse_args(ctx, own)
        ctx.params["agent"] = tuple(agent)
        return rest


class Commands(click.Group):
    command_class = Command


@click.group(
    cls=Commands, epilog=_EPILOG, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(__version__, prog_name="turntape", message="%(prog)s %(version)s")
@click.option(
    "--config",
    "config_file",
    type=FILE,
    envvar="TURNTAPE_CONFIG",
    help="Configuration file. Default: turntape.toml here, if there is one.",
)
@click.pass_context
def main(context: click.Context, config_file: Path | None) -> None:
    """A Responses API server for coding agents: one WebSocket, any backend, recorded and replayed."""
    config.use(context, config_file)
    for warning in config.unknown_variables(os.environ, context.command):
        click.echo(f"warning: {warning}", err=True)


@main.command()
@listen_options
@model_options
@ledger_option
@option("--record", type=FILE, metavar="DIR", help="Write every session into a new file in DIR.")
@secret_options
@click.pass_context
def serve(context: click.Context, /, record: Path | None, ledger: LedgerSpec, **values: Any) -> None:
    """Run the server.

    Without options it answers from a built-in script, on this machine only, and prints how to point Codex and
    an SDK at it. The line "listening on http://HOST:PORT/v1" goes to standard output once it accepts
    connections. SIGINT or SIGTERM lets turns in flight end; a second one stops at once. SIGHUP reads the
    [backends] and [models] tables again.
    """
    from . import commands  # here, so that `turntape verify` does not load a server

    listen, model, secrets = take(Listen, values), take(Model, values), take(Secrets, values)
    sys.exit(commands.serve(listen, model, tables_of(context), secrets, folder=record, ledger=ledger))


@main.command(context_settings={"allow_interspersed_args": False})
@option("--out", type=FILE, required=True, help="The recording, a new file.")
@option(
    "--upstream",
    default="",
    show_default=False,
    metavar="URL",
    help="Relay to this Responses server, http(s)://HOST/v1, and answer nothing.",
)
@listen_options
@model_options
@secret_options
@json_option
@click.argument("agent", metavar="[-- AGENT...]", nargs=-1, type=click.UNPROCESSED)
@click.pass_context
def record(
    context: click.Context, /, out: Path, upstream: str, as_json: bool, agent: tuple[str, ...], **values: Any
) -> None:
    """Serve, or relay to another server, and write every session to a file.

    With a command after "--" that agent is started against the server, and its end is the end of the
    recording. Codex is pointed here by -c overrides, its configuration untouched, also behind timeout, env,
    nice, node or npx; everything else by OPENAI_BASE_URL and OPENAI_API_KEY. A shell cannot be seen into: how
    to point a Codex here that it starts is printed if nobody connects. The port is a free one unless --port names it. The
    exit code is the agent's own (128 plus the signal that killed it), 1 if that is 0 but nobody connected, or
    3 if the agent or the recording could not be started. What turntape says goes to standard error.

    With --upstream every byte passes between the agent and that server as it is, but for the host and the path;
    the agent's own key, in OPENAI_API_KEY, goes there and is not recorded.

    \b
    turntape record --out fix.jsonl -- codex exec "add a test"
    turntape record --out fix.jsonl -- timeout 600 codex exec "add a test"
    turntape record --out fix.jsonl -- python my_agent.py
    turntape record --out fix.jsonl --upstream https://api.openai.com/v1 -- codex exec "add a test"
    """
    listen, model, secrets = take(Listen, values), take(Model, values), take(Secrets, values)
    if context.get_parameter_source("store") is ParameterSource.DEFAULT:
        model = evolve(model, store=StoreSpec(None))  # what is recorded masked is not kept unmasked beside it
    if agent and context.get_parameter_source("port") is ParameterSource.DEFAULT:
        listen = evolve(listen, port=0)  # the agent is told, and nobody else asks
    if upstream:
        from . import relaying
        from .recording import NewRecording
        from .secrecy import Secrecy

        led = relaying.upstream_of(context, upstream)
        recording = NewRecording(out, "--out", Secrecy.of(secrets))
        sys.exit(relaying.record(listen, led, recording=recording, agent=agent, as_json=as_json))
    from . import commands

    sys.exit(commands.record(listen, model, tables_of(context), secrets, out=out, agent=agent, as_json=as_json))


@main.command(cls=AroundAgent)
@click.argument("fixtures", metavar="FIXTURE... [-- AGENT...]", nargs=-1, required=True, type=EXISTING_FILE)
@option(
    "--strict/--no-strict",
    default=False,
    help="Exit with 1 if a recorded turn was not played, or a fault never happened.",
)
@stub_options
@secret_values
@listen_options
@backend_options
@json_option
@click.pass_context
def stub(context: click.Context, /, strict: bool, as_json: bool, agent: tuple[str, ...] = (), **values: Any) -> None:
    """Answer an agent from recordings, with no model behind.

    Each request must match a recorded turn: the whole conversation, its model, tools and settings. A request
    that does not is refused with the nearest turn and the difference, on standard error too, and the exit code
    is then 1. Each recorded turn is played once in a run, those of one lane in recorded order. The last line
    counts: played 3 of 3 turns, 0 misses.

    With a command after "--" that agent is started against the stub, as record does it, and its end is the end of
    the stub. The exit code is then the agent's if that is not 0.

    \b
    turntape stub fix.jsonl --strict -- codex exec "add a test"
    turntape stub fix.jsonl --fault 2:drop -- python my_agent.py
    turntape stub fix.jsonl --on-miss record --backend openai --out new.jsonl -- python my_agent.py
    """
    from . import stubbing

    listen, played, elsewhere = take(Listen, values), stubbing.played(values), stubbing.elsewhere(context, values)
    if agent and context.get_parameter_source("port") is ParameterSource.DEFAULT:
        listen = evolve(listen, port=0)
    sys.exit(stubbing.stub(listen, played, strict=strict, as_json=as_json, elsewhere=elsewhere, agent=agent))


@main.command()
@backend_options
@json_option
@click.pass_context
def models(context: click.Context, /, as_json: bool, **values: Any) -> None:
    """List the models: which backend answers each, and under which name.

    These are the [models] tables of turntape.toml. Nothing is connected to; see doctor for that.
    """
    from . import checking

    sys.exit(checking.models(take(Model, values), tables_of(context), as_json=as_json))


@main.command()
@backend_options
@option("--sample/--no-sample", default=False, help="Ask each model for a few tokens too, which may cost money.")
@json_option
@click.pass_context
def doctor(context: click.Context, /, sample: bool, as_json: bool, **values: Any) -> None:
    """Look at each backend and model, and say what is wrong and what to do.

    Each server is connected to and asked for its list of models. The exit code is 1 if anything cannot be used.

    \b
    turntape doctor                                       # all that turntape.toml names
    turntape doctor --backend cerebras --model gpt-oss-120b --sample
    """
    from . import checking

    sys.exit(checking.doctor(take(Model, values), tables_of(context), sample=sample, as_json=as_json))


@main.command()
@FIXTURES
@option("--diff/--no-diff", default=False, help="Print every difference, not only the first.")
@option(
    "--upgrade/--no-upgrade", default=False, help="Write the recordings again with what today's core makes of them."
)
@option("--reason", default="", show_default=False, help="Why that is right, for --upgrade; it stays in the file.")
@option("--accept-edits/--no-accept-edits", default=False, help="With --upgrade: what a person edited is meant.")
@json_option
def verify(
    fixtures: tuple[Path, ...], diff: bool, upgrade: bool, reason: str, accept_edits: bool, as_json: bool
) -> None:
    """Check that recordings replay byte for byte.

    Every event is fed to a fresh core: the first different byte is an error with its line. --diff prints all
    differences. --upgrade with --reason rewrites the files, their events untouched.

    \b
    turntape verify --diff fix.jsonl
    turntape verify --upgrade --reason "responses name their service tier" fix.jsonl
    """
    from . import reading, upgrading

    if upgrade and not reason.strip():
        raise click.UsageError("--upgrade needs --reason TEXT, which stays in the file; --diff shows what would change")
    if not upgrade and (reason or accept_edits):
        raise click.UsageError(f"{'--reason' if reason else '--accept-edits'} belongs to --upgrade")
    if upgrade:
        sys.exit(upgrading.upgrade_all(fixtures, reason=reason, accept_edits=accept_edits, as_json=as_json))
    if diff:
        sys.exit(upgrading.diff(fixtures, as_json=as_json))
    sys.exit(reading.verify(fixtures, as_json=as_json))


@main.command()
@FIXTURES
@option("--golden/--no-golden", default=False, help="A text to review: whole, without times, ids and what may differ.")
@click.option("--html", type=FILE, help="Write a page for a browser: of one recording, or of two side by side.")
def show(fixtures: tuple[Path, ...], golden: bool, html: Path | None) -> None:
    """Print recordings, or make a page of them.

    \b
    turntape show fix.jsonl                       # what happened, with times; long texts are cut
    turntape show --golden fix.jsonl >fix.txt     # equal for runs that differ only in what may differ
    turntape show --html fix.html fix.jsonl       # a timeline; with a second recording, both side by side
    """
    from . import reading

    sys.exit(reading.show(fixtures, as_golden=golden, html=html))


@main.command()
@FIXTURES
@backend_options
@option(
    "--url",
    default="",
    show_default=False,
    metavar="URL",
    help="Drive this server of the Responses API, and no backend.",
)
@option(
    "--mode",
    type=click.Choice(("forced", "free")),
    default="forced",
    help="forced: the recorded conversation, whatever is said; free: as far as the recording can answer.",
)
@option(
    "--design",
    type=click.Choice(("create", "append", "http")),
    default="create",
    help="How the client asks: response.create or response.append on a WebSocket, or POSTs.",
)
@option("--repeat", type=WholeNumber(1, 10_000), default=1, metavar="N", help="How often each fixture is played.")
@option("--parallel", type=WholeNumber(1, 1000), default=1, metavar="N", help="Runs at once.")
@option(
    "--tool-time",
    default="recorded",
    metavar="recorded|zero|xN",
    help="Time between turns: as it was, none, or N times as long.",
)
@option("--strict/--no-strict", default=False, help="Exit with 1 if anything differs from the recording.")
@click.option(
    "--json",
    "json_file",
    type=ReportFile(),
    metavar="FILE",
    help="Write the report to this file, which compare reads; one that exists is written over; - prints it.",
)
@click.option("--html", type=FILE, help="Write the report as a page for a browser.")
@click.pass_context
def drive(
    context: click.Context,
    /,
    fixtures: tuple[Path, ...],
    url: str,
    mode: str,
    design: str,
    repeat: int,
    parallel: int,
    tool_time: str,
    strict: bool,
    json_file: Path | None,
    html: Path | None,
    **values: Any,
) -> None:
    """Play recorded clients against a live backend, and compare what it says.

    In forced mode each turn is asked with the recorded history, so that all turns can be compared whatever is
    said. In free mode the model is answered with recorded tool outputs for as long as it makes the recorded
    calls; where it makes another one is the result. --model takes the place of the recorded model.

    \b
    turntape drive fix.jsonl --backend vllm --model qwen3-coder --json today.json
    turntape drive fix.jsonl --url https://api.openai.com/v1 --mode free --design http
    """
    from . import driving

    model = take(Model, values)
    target = driving.Target.chosen(context, model, tables_of(context), url)
    settings = driving.settings(
        mode=mode, design=design, tool_time=tool_time, model=model.model, repeat=repeat, parallel=parallel
    )
    files = driving.Files(json_file, html)
    sys.exit(driving.drive(fixtures, target, settings, files, strict=strict))


@main.command()
@click.argument("first", metavar="A.json", type=EXISTING_FILE)
@click.argument("second", metavar="B.json", type=EXISTING_FILE)
@click.option(
    "--max-ttft-ratio", type=float, metavar="R", help="Most that the median TTFT of B may be, in times that of A."
)
@click.option(
    "--max-wall-ratio", type=float, metavar="R", help="Most that the wall time of B may be, in times that of A."
)
@click.option(
    "--allow-departures", type=WholeNumber(min=0), metavar="N", help="Departures in B; default: as many as in A."
)
@click.option(
    "--verdicts",
    type=click.Choice(("same", "report")),
    default="same",
    show_default=True,
    help="Whether a changed verdict counts, or is only shown.",
)
@click.option("--html", type=FILE, help="Write both as a page for a browser.")
@json_option
def compare(
    first: Path,
    second: Path,
    max_ttft_ratio: float | None,
    max_wall_ratio: float | None,
    allow_departures: int | None,
    verdicts: str,
    html: Path | None,
    as_json: bool,
) -> None:
    """Set two reports of drive beside each other: backend A and B, or a baseline and today.

    The exit code is 1 if anything is beyond its threshold. Without options a changed verdict is, and so are more
    departures; times are shown.

    \b
    turntape compare baseline.json today.json --max-ttft-ratio 1.5
    """
    from . import driving

    limits = driving.thresholds(max_ttft_ratio, max_wall_ratio, allow_departures, verdicts)
    sys.exit(driving.compare(first, second, limits, html=html, as_json=as_json))


@main.command(name="import")
@click.argument("sources", metavar="SOURCE...", nargs=-1, required=True, type=EXISTING_FILE)
@option("--from", "kind", type=click.Choice(("codex", "openai-events", "aimock")), help="Default: seen in the files.")
@option("--out", type=FILE, required=True, help="The recording, a new file.")
@secret_options
@json_option
def import_(sources: tuple[Path, ...], kind: str | None, out: Path, as_json: bool, **values: Any) -> None:
    """Make a recording of what another tool has kept.

    Codex's rollout files, logs of Responses events as an OpenAI SDK gives them, fixtures of aimock. What a
    source does not hold is said, and stands in the recording's first line; rules let it pass.

    \b
    turntape import ~/.codex/sessions/2026/11/29/rollout-*.jsonl --out fix.jsonl
    turntape import --from openai-events events.jsonl --out fix.jsonl
    """
    from . import converting

    sys.exit(converting.import_(sources, take(Secrets, values), kind=kind, out=out, as_json=as_json))


@main.command()
@FIXTURES
@option("--to", "kind", type=click.Choice(("aiperf",)), required=True, help="What is to read it.")
@option("--out", type=FILE, required=True, help="The workload, a new file.")
@json_option
def export(fixtures: tuple[Path, ...], kind: str, out: Path, as_json: bool) -> None:
    """Make a workload of recordings, for a load generator.

    \b
    turntape export fix.jsonl --to aiperf --out work.jsonl
    aiperf profile --endpoint-type responses --custom-dataset-type mooncake_trace --input-file work.jsonl ...
    """
    from . import converting

    sys.exit(converting.export(fixtures, out=out, as_json=as_json))


@main.command()
@FIXTURES
@secret_values
@json_option
def scan(fixtures: tuple[Path, ...], as_json: bool, **values: Any) -> None:
    """Look for secrets in recordings.

    Keys of known shapes and the secrets that are named are findings, also where they are split over lines: the
    exit code is then 1. What only looks random is warned of. No secret is shown.
    """
    from . import sharing

    sys.exit(sharing.scan(fixtures, take(Secrets, values), as_json=as_json))


@main.command()
@click.argument("fixture", type=EXISTING_FILE)
@option("--out", type=FILE, required=True, help="The copy, a new file.")
@option("--keep", type=click.Choice(KINDS_OF_PROSE), multiple=True, help="Prose that is left as it is; repeatable.")
@secret_values
def scrub(fixture: Path, out: Path, keep: tuple[str, ...], **values: Any) -> None:
    """Copy a recording without its prose, to share it.

    Instructions, messages, reasoning, tool descriptions, arguments and outputs become filler of the same length;
    structure, ids, times, sizes and the names of tools stay. The copy verifies, and a stub plays it. Secrets are masked in what is kept.
    """
    from . import sharing

    sys.exit(sharing.scrub(fixture, take(Secrets, values), out=out, keep=keep))


@main.command()
@ledger_option
@by_option
@since_option
@json_option
def usage(ledger: LedgerSpec, by: str, since: float, as_json: bool) -> None:
    """Add up what a server's responses used.

    It reads the ledger that serve writes, also while it runs. Nothing is sent anywhere, and no price is known.

    \b
    turntape usage --by owner --since 7d
    turntape usage --ledger jsonl:usage.jsonl --by day --json
    """
    from . import using

    sys.exit(using.usage(ledger, by=by, since=since, as_json=as_json))


@main.command()
@option(
    "--url",
    default="",
    show_default=False,
    metavar="URL",
    help="A running server, such as http://127.0.0.1:8765/v1. Default: starts one for the demo.",
)
@option("--key-file", type=EXISTING_FILE, help="File whose first key is presented to the server.")
def demo(url: str, key_file: Path | None) -> None:
    """Watch a small agent work over one WebSocket.

    It has real tools in a temporary folder, and shows each turn: what was called, what was sent, the time to
    the first token.
    """
    from . import commands

    sys.exit(commands.demo(url, key_file))
