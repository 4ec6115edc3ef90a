"""The command ``record --upstream``: a relay in front of a real server, alone or around the agent that is recorded."""

import os
import shlex
from collections.abc import Mapping

import click
import trio
from attrs import field, frozen
from click.core import ParameterSource

from turntape.replay.relay.relay import Relay
from turntape.replay.relay.server import serve
from turntape.replay.relay.upstream import Upstream
from turntape.transport.guard import Guard, is_loopback

from . import __version__, agents
from .commands import start
from .options import Listen
from .recording import NewRecording
from .serving import Address, run

ACCOUNT_HOSTS = ("openai.com", "chatgpt.com")
"""Domains that may be sent the key of the user's own account, as Codex keeps it."""

_OURS = ("backend", "model", "backend_key_file", "store", "keepalive", "max_message_bytes", "compression")


def upstream_of(context: click.Context, url: str) -> Upstream:
    """The upstream that ``url`` names.

    Raises:
        click.UsageError: it is none, or the command line also has options of a server that answers by itself.
    """
    for name in _OURS:
        if context.get_parameter_source(name) is ParameterSource.COMMANDLINE:
            flag = f"--{name.replace('_', '-')}"
            more = "; name the model to the agent" if name == "model" else ""
            raise click.UsageError(f"{flag} does not go with --upstream: another server answers, not this one{more}")
    try:
        return Upstream.parse(url)
    except ValueError as exc:
        raise click.UsageError(f"--upstream: {exc}") from exc


@frozen
class Relayed:
    """A relay, as ``serving.run`` runs it.

    Attributes:
        for_agent: it is there for one agent, which was just started.
    """

    listen: Listen
    relay: Relay
    recording: NewRecording
    for_agent: bool
    reload: None = field(init=False, default=None)

    async def serve(
        self, shutdown: trio.Event, *, task_status: trio.TaskStatus[int] = trio.TASK_STATUS_IGNORED
    ) -> None:
        listen = self.listen
        await serve(
            self.relay,
            host=listen.host,
            port=listen.port,
            grace_s=listen.grace,
            shutdown=shutdown,
            task_status=task_status,
        )

    async def beside(self) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.recording.keep_flushed)
            if self.for_agent:
                nursery.start_soon(self.recording.say_if_nobody_comes)


def record(
    listen: Listen, upstream: Upstream, *, recording: NewRecording, agent: tuple[str, ...], as_json: bool
) -> int:
    """Relay until a signal, or until ``agent`` ends, and write what passes to ``recording``.

    Returns:
        The agent's exit code; 1 if that is 0 and it asked nothing.
    """
    with recording:
        code = start(_record, listen, upstream, recording, agent=agent, as_json=as_json)
    click.echo(recording.outcome(as_json=as_json), err=bool(agent) or not as_json)
    failed = recording.refusal or (agent and not recording.tape.n_sessions)
    return 1 if failed and not code else code


async def _record(
    listen: Listen,
    keys: tuple[str, ...],
    upstream: Upstream,
    recording: NewRecording,
    *,
    agent: tuple[str, ...],
    as_json: bool,
) -> int:
    def unreachable(message: str) -> None:
        recording.n_unreachable += 1
        if message not in said:  # an agent tries again many times
            said.add(message)
            click.echo(f"warning: {message}", err=True)

    said = set[str]()
    relay = Relay(
        upstream,
        recording.tape,
        Guard(frozenset(keys), frozenset(listen.allow_origin), listen.host),
        websocket=listen.websocket,
        secrets=recording.secrecy.values,
        names=recording.secrecy.names,
        on_unreachable=unreachable,
    )
    account = _of_account(upstream, os.environ)

    def started(address: Address) -> None:
        _announce(address, relay, recording, listen=listen, keys=keys, piped=as_json or bool(agent), agent=agent)

    async def run_agent(address: Address) -> int:
        command = agents.launch(
            agent,
            url=address.local,
            key=os.environ.get("OPENAI_API_KEY", ""),
            model="",
            websocket=listen.websocket,
            environment=os.environ,
            account=account,
        )
        return await agents.run(command)

    relayed = Relayed(listen, relay, recording, for_agent=bool(agent))
    code = await run(relayed, started=started, task=run_agent if agent else None)
    if recording.n_unreachable:
        n = recording.n_unreachable
        click.echo(
            f"not passed on, for the upstream could not be reached: {n} request{'' if n == 1 else 's'}", err=True
        )
    if relay.n_others:
        others = ", ".join(f"{route} ({n})" for route, n in relay.n_others.most_common())
        click.echo(f"passed on and not recorded: {others}", err=True)
    return code


def _of_account(upstream: Upstream, environment: Mapping[str, str]) -> bool:
    """Whether Codex is to send the key of its own account: there is no other, and the upstream is whose key it is."""
    host = upstream.target.host.lower()
    theirs = any(host == domain or host.endswith("." + domain) for domain in ACCOUNT_HOSTS)
    return theirs and upstream.target.scheme == "https" and not environment.get("OPENAI_API_KEY")


def _announce(
    address: Address,
    relay: Relay,
    recording: NewRecording,
    *,
    listen: Listen,
    keys: tuple[str, ...],
    piped: bool,
    agent: tuple[str, ...],
) -> None:
    """Say where the relay listens, where it leads, and how an agent is pointed at it, on standard error.

    The line that programs wait for stands alone on standard output, unless that is another's.
    """
    notes = {"upstream": relay.upstream.url, "recording": str(recording.path)}
    notes["keys"] = "the agent's own go to the upstream" + (f"; only those in {listen.key_file}" if keys else "")
    if not is_loopback(listen.host):
        notes["network"] = f"other machines can reach this relay; from this one it is {address.local}"
    account = _of_account(relay.upstream, os.environ)
    if not agent:
        overrides = agents.codex_overrides(url=address.local, model="", websocket=listen.websocket, account=account)
        codex = shlex.join(["codex", *(part for value in overrides for part in ("-c", value))])
        notes["Codex"] = codex if account else f'{agents.KEY_VARIABLE}="$OPENAI_API_KEY" {codex}'
        notes["SDK"] = f"OPENAI_BASE_URL={address.local}"
    else:
        recording.hint.text = agents.hidden_codex(
            agent, url=address.local, model="", websocket=listen.websocket, account=account
        )
    click.echo(f"turntape {__version__}", err=True)
    for name, note in notes.items():
        click.echo(f"  {name:<11}{note}", err=True)
    click.echo(f"listening on {address.bound}", err=piped)
