"""A new recording: made before the server starts, flushed while it runs, complete when it ends."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import click
import orjson
import trio
from attrs import asdict, define, field

from turntape.core.session import Session
from turntape.replay.errors import ReplayError
from turntape.replay.recorder import Recorder, Tape
from turntape.replay.secrets import DEFAULT, Masker

from .agents import Hint
from .options import EnvironmentFailed, Secrets
from .secrecy import Secrecy

_FLUSH_S = 1.0  # the most that a kill -9 can take from a recording
SILENCE_S = 15.0
"""How long an agent may take to its first request before that is said; ours. Agents ask within a few seconds."""


@define
class NewRecording(AbstractContextManager["NewRecording"]):
    """The file ``path``, which must not exist yet. One in which nobody connected is taken away again.

    Args:
        option: the option that named it, for messages.
        secrecy: what is hidden in it.
        header: further keys of its first line, such as ``rules``.

    Attributes:
        keys: those that the server knows at the moment, which are hidden too.
        n_unreachable: requests that could not be passed on, since the upstream cannot be reached.
    """

    path: Path
    option: str
    secrecy: Secrecy = field(factory=lambda: Secrecy.of(Secrets()))
    header: Mapping[str, Any] = field(factory=dict)
    keys: Callable[[], tuple[str, ...]] = field(init=False, default=tuple)
    hint: Hint = field(init=False, factory=Hint)
    n_unreachable: int = field(init=False, default=0)
    tape: Tape = field(init=False)
    _masker: Masker = field(init=False, default=DEFAULT)
    _masked_keys: tuple[str, ...] | None = field(init=False, default=None)
    _said: bool = field(init=False, default=False)

    def __enter__(self) -> Self:
        if not self.path.parent.is_dir():
            raise click.UsageError(f"{self.option}: there is no folder {self.path.parent}; make it first")
        try:
            self.tape = Tape.create(self.path, self.header, refuses=self.secrecy.refuse)
        except ReplayError as exc:
            raise click.UsageError(f"{self.option}: {exc}") from exc
        return self

    def __exit__(self, *exc: object) -> None:
        self.tape.close()
        if not self.tape.n_sessions:
            self.path.unlink(missing_ok=True)

    def session(self, *, rules: Sequence[Any] | None = None) -> Recorder:
        """A session that is written to the file.

        Args:
            rules: what may differ when it is replayed; None for the preset that its client has.
        """
        if (keys := self.keys()) != self._masked_keys:
            self._masker, self._masked_keys = self.secrecy.masker(keys), keys
        return Recorder(Session(), self.tape, rules, self._masker)

    async def keep_flushed(self) -> None:
        """Hand what was written to the operating system every second, until cancelled."""
        while True:
            await trio.sleep(_FLUSH_S)
            self.tape.flush()
            if self.tape.refused and not self._said:
                self._said = True
                click.echo(f"warning: {self.refusal}; sessions go on unrecorded", err=True)

    @property
    def refusal(self) -> str:
        """Why the recording ended, if it met a secret that it was told to refuse; else ""."""
        return f"the recording ended before {self.tape.refused}" if self.tape.refused else ""

    async def say_if_nobody_comes(self) -> None:
        """Say so once, if no session has been recorded after ``SILENCE_S``."""
        await trio.sleep(SILENCE_S)
        if not self.tape.n_sessions and not self.n_unreachable:
            click.echo(
                f"warning: nobody has connected yet, after {SILENCE_S:g} s; does the agent read OPENAI_BASE_URL, "
                f"or was Codex given the -c overrides?{self.hint.once()}",
                err=True,
            )

    def outcome(self, *, as_json: bool = False) -> str:
        """What was recorded, in one line.

        Raises:
            EnvironmentFailed: the file could not be written to the end.
        """
        if self.tape.failure:
            reason = self.tape.failure.strerror or self.tape.failure
            raise EnvironmentFailed(
                f"{self.path}: the recording is cut short ({reason}); what it holds can be replayed"
            )
        if as_json:
            path = str(self.path) if self.tape.n_sessions else None
            more = {"refused": self.tape.refused} if self.tape.refused else {}
            return orjson.dumps({"recording": path, **asdict(self.tape.counts), **more}).decode()
        if not self.tape.n_sessions:
            why = "the upstream cannot be reached" if self.n_unreachable else "nobody connected"
            return f"recorded nothing: {why}{'' if self.n_unreachable else self.hint.once()}"
        lost = self.tape.n_lost
        notes = [self.refusal] if self.refusal else []
        if lost:
            notes.append(f"{lost} session{'' if lost == 1 else 's'} not to the end: masked, two names in it are one")
        return "; ".join((f"recorded {self.path}: {self.tape.counts}", *notes))
