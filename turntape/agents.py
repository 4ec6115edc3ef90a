"""Start an agent pointed at this server, its own configuration untouched."""

import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import PurePath

import trio
from attrs import frozen

from .options import EnvironmentFailed

KEY_VARIABLE = "TURNTAPE_API_KEY"
"""Where Codex finds its key. A provider without ``env_key`` would be sent the key of the user's own account."""

NO_KEY = "turntape"
"""The key an agent presents to a server that asks for none: most clients refuse to start without one."""

BACKEND_KEY_VARIABLE = "TURNTAPE_BACKEND_KEY"
"""The upstream key. It is the server's alone: an agent, and the tools it runs, never see it."""

_RUNNERS = ("npx", "bunx", "pnpx")


@frozen
class Launch:
    """A command, and the environment it needs to talk to this server.

    Attributes:
        argv: program and arguments.
        environment: what to set besides the caller's own environment.
    """

    argv: tuple[str, ...]
    environment: dict[str, str]


class AgentMissing(EnvironmentFailed):
    """There is no such program, or it cannot be started."""


def codex_overrides(*, url: str, model: str, websocket: bool = True) -> tuple[str, ...]:
    """The ``-c`` values that make Codex use the server at ``url``; they stand above its configuration files."""
    provider = (
        f'{{name="turntape", base_url="{url}", env_key="{KEY_VARIABLE}", wire_api="responses", '
        f"supports_websockets={str(websocket).lower()}}}"
    )
    values = ('model_provider="turntape"', f"model_providers.turntape={provider}")
    return (*values, f'model="{model}"') if model else values


def launch(
    argv: Sequence[str],
    *,
    url: str,
    key: str,
    model: str,
    websocket: bool,
    environment: Mapping[str, str],
) -> Launch:
    """Return ``argv`` as it must be run to talk to the server at ``url``.

    Codex takes the address as overrides before its own arguments, which win over ours. Everything else gets
    the two variables that OpenAI's libraries read.

    Args:
        argv: the agent's command, as the user would write it.
        url: ends in ``/v1``.
        key: what the agent presents; "" if the server asks for none.
        model: the server's default model, "" to leave the choice to the agent.
        environment: the caller's own environment, read only.
    """
    settings = {
        "OPENAI_BASE_URL": url,
        "OPENAI_API_KEY": key or NO_KEY,
        KEY_VARIABLE: key or NO_KEY,
        **_no_proxy(environment),
    }
    command = list(argv)
    if (at := _codex_at(command)) is not None:
        overrides = codex_overrides(url=url, model=model, websocket=websocket)
        command[at + 1 : at + 1] = [part for value in overrides for part in ("-c", value)]
    return Launch(tuple(command), settings)


def _codex_at(argv: Sequence[str]) -> int | None:
    """Where in ``argv`` Codex is named: first, or as the package that a runner such as npx starts."""
    if PurePath(argv[0]).stem == "codex":
        return 0
    if PurePath(argv[0]).name in _RUNNERS:
        for at, word in enumerate(argv[1:], start=1):
            if word == "codex" or word == "@openai/codex" or word.startswith("@openai/codex@"):
                return at
            if not word.startswith("-"):
                return None
    return None


def _no_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """A proxy of the user's must not come between two programs on one machine."""
    name = "no_proxy" if "no_proxy" in environment else "NO_PROXY"
    hosts = [host for host in environment.get(name, "").split(",") if host]
    return {name: ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost"]))}


async def run(command: Launch) -> int:
    """Run the agent on this terminal until it ends, and return its exit code as a shell would give it.

    Cancelling ends the agent: it is asked to, and after five seconds made to.

    Raises:
        AgentMissing: with what to do about it.
    """
    program = command.argv[0]
    if shutil.which(program) is None:
        raise AgentMissing(f"{program}: no such program; install it, or give its path after --")
    environment = {name: value for name, value in os.environ.items() if name != BACKEND_KEY_VARIABLE}
    try:
        ended = await trio.run_process(command.argv, stdin=None, check=False, env=environment | command.environment)
    except OSError as exc:
        raise AgentMissing(f"{program}: cannot be started ({exc.strerror})") from exc
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
