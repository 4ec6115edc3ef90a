"""Start an agent pointed at this server, its own configuration untouched."""

import os
import re
import shlex
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import PurePath

import trio
from attrs import define, frozen

from .options import EnvironmentFailed

KEY_VARIABLE = "TURNTAPE_API_KEY"
"""Where Codex finds its key. A provider without ``env_key`` would be sent the key of the user's own account."""

NO_KEY = "turntape"
"""The key an agent presents to a server that asks for none: most clients refuse to start without one."""

BACKEND_KEY_VARIABLE = "TURNTAPE_BACKEND_KEY"
"""The upstream key. It is the server's alone: an agent, and the tools it runs, never see it."""

_CODEX = re.compile(r"codex(\.js|\.exe|-(x86_64|aarch64)-[\w-]+(\.exe)?)?|@openai/codex(@.+)?")
"""What Codex is called: its launcher, its script, the program for one platform, or its package."""


@frozen
class _Wrapper:
    """A program that runs the command in its own arguments.

    Attributes:
        valued: its options whose value is the next word.
        n_words: words of its own before the command.
    """

    valued: tuple[str, ...] = ()
    n_words: int = 0


WRAPPERS = {
    "env": _Wrapper(("-u", "--unset", "-C", "--chdir")),
    "nice": _Wrapper(("-n", "--adjustment")),
    "nohup": _Wrapper(),
    "setsid": _Wrapper(),
    "stdbuf": _Wrapper(("-i", "--input", "-o", "--output", "-e", "--error")),
    "time": _Wrapper(("-f", "--format", "-o", "--output")),
    "timeout": _Wrapper(("-k", "--kill-after", "-s", "--signal"), n_words=1),
    "bun": _Wrapper(("-r", "--preload")),
    "bunx": _Wrapper(("-p", "--package")),
    "node": _Wrapper(("-r", "--require", "--import", "--loader", "-C", "--conditions")),
    "npx": _Wrapper(("-p", "--package", "-w", "--workspace")),
    "pnpx": _Wrapper(("-p", "--package")),
}
"""Those that are seen through. A shell is none of them: its command is a text of its own."""

_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")


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


def codex_overrides(*, url: str, model: str, websocket: bool = True, account: bool = False) -> tuple[str, ...]:
    """The ``-c`` values that make Codex use the server at ``url``; they stand above its configuration files.

    Args:
        account: it is to present the key of the user's account, and no other.
    """
    credentials = "requires_openai_auth=true" if account else f'env_key="{KEY_VARIABLE}"'
    provider = (
        f'{{name="turntape", base_url="{url}", {credentials}, wire_api="responses", '
        f"supports_websockets={str(websocket).lower()}}}"
    )
    values = ('model_provider="turntape"', f"model_providers.turntape={provider}")
    return (*values, f'model="{model}"') if model else values


@define(eq=False)
class Hint:
    """What whoever waits in vain for an agent should know; said once."""

    text: str = ""

    def once(self) -> str:
        """On a line of its own, "" the second time."""
        text, self.text = self.text, ""
        return f"\n  {text}" if text else ""


def hidden_codex(argv: Sequence[str], *, url: str, model: str, websocket: bool = True, account: bool = False) -> str:
    """How a Codex must be started that ``argv`` may start unseen; "" where ``launch`` sees it."""
    if codex_at(argv) is not None:
        return ""
    overrides = codex_overrides(url=url, model=model, websocket=websocket, account=account)
    command = shlex.join(["codex", *(part for value in overrides for part in ("-c", value))])
    return f"Codex, if the agent starts it, must be started as: {command}"


def launch(
    argv: Sequence[str],
    *,
    url: str,
    key: str,
    model: str,
    websocket: bool,
    environment: Mapping[str, str],
    account: bool = False,
) -> Launch:
    """Return ``argv`` as it must be run to talk to the server at ``url``.

    Codex takes the address as overrides before its own arguments, which win over ours. Everything else gets
    the two variables that OpenAI's libraries read, and so does a Codex that ``codex_at`` does not find.

    Args:
        argv: the agent's command, as the user would write it.
        url: ends in ``/v1``.
        key: what the agent presents; "" if the server asks for none.
        model: the server's default model, "" to leave the choice to the agent.
        environment: the caller's own environment, read only.
        account: Codex presents the key of the user's account, and nobody is given another.
    """
    keys = {} if account else {"OPENAI_API_KEY": key or NO_KEY, KEY_VARIABLE: key or NO_KEY}
    settings = {"OPENAI_BASE_URL": url, **keys, **_no_proxy(environment)}
    command = list(argv)
    if (at := codex_at(command)) is not None:
        overrides = codex_overrides(url=url, model=model, websocket=websocket, account=account)
        command[at + 1 : at + 1] = [part for value in overrides for part in ("-c", value)]
    return Launch(tuple(command), settings)


def codex_at(argv: Sequence[str]) -> int | None:
    """Where in ``argv`` Codex is named: as the program, or as what wrappers such as timeout, env or npx run.

    None: it is another program, or one that cannot be seen into, such as a shell.
    """
    at = 0
    while at < len(argv):
        name = PurePath(argv[at]).name
        if _CODEX.fullmatch(name) or _CODEX.fullmatch(argv[at]):
            return at
        if (wrapper := WRAPPERS.get(name)) is None:
            return None
        at = _command_of(wrapper, argv, at + 1)
    return None


def _command_of(wrapper: _Wrapper, argv: Sequence[str], at: int) -> int:
    """Where the command that ``wrapper`` runs begins; its own arguments begin at ``at``."""
    n_words = wrapper.n_words
    while at < len(argv):
        word = argv[at]
        if word in wrapper.valued:
            at += 1
        elif not (word.startswith("-") or _ASSIGNMENT.match(word)):
            if not n_words:
                break
            n_words -= 1
        at += 1
    return at


def _no_proxy(environment: Mapping[str, str]) -> dict[str, str]:
    """A proxy of the user's must not come between two programs on one machine."""
    name = "no_proxy" if "no_proxy" in environment else "NO_PROXY"
    hosts = [host for host in environment.get(name, "").split(",") if host]
    return {name: ",".join(dict.fromkeys([*hosts, "127.0.0.1", "localhost"]))}


async def run(command: Launch, *, without: Collection[str] = ()) -> int:
    """Run the agent on this terminal until it ends, and return its exit code as a shell would give it.

    Cancelling ends the agent: it is asked to, and after five seconds made to.

    Args:
        without: variables that it must not see, as they hold keys of backends.

    Raises:
        AgentMissing: with what to do about it.
    """
    program = command.argv[0]
    if shutil.which(program) is None:
        raise AgentMissing(f"{program}: no such program; install it, or give its path after --")
    hidden = {BACKEND_KEY_VARIABLE, *without}
    environment = {name: value for name, value in os.environ.items() if name not in hidden}
    try:
        ended = await trio.run_process(command.argv, stdin=None, check=False, env=environment | command.environment)
    except OSError as exc:
        raise AgentMissing(f"{program}: cannot be started ({exc.strerror})") from exc
    return ended.returncode if ended.returncode >= 0 else 128 - ended.returncode
