"""What a recording hides: secrets by their shapes, those that the command line names, and the keys of this process."""

import os
from collections.abc import Iterable, Mapping

import click
from attrs import field, frozen

from turntape.replay.errors import ReplayError
from turntape.replay.secrets import SHORTEST_VALUE, Masker

from . import agents
from .keys import read_keys
from .options import Secrets

KEY_VARIABLES = ("OPENAI_API_KEY", "CODEX_API_KEY", agents.BACKEND_KEY_VARIABLE)
"""Whose values are masked wherever they stand: they are what agents and backends are given here."""


@frozen
class Secrecy:
    """Attributes:
    values: secrets by their text.
    names: of variables and fields whose values are secrets.
    refuse: a secret ends the recording, rather than being masked.
    """

    values: tuple[str, ...] = field(default=(), repr=False)
    names: tuple[str, ...] = ()
    refuse: bool = False

    @classmethod
    def of(cls, secrets: Secrets, environment: Mapping[str, str] = os.environ, *, warns: bool = True) -> "Secrecy":
        """
        Args:
            warns: a variable that is not set is warned of: what it should hold will not be found.

        Raises:
            click.UsageError: a variable or a value cannot be used; the value is not shown.
        """
        values = _keys(environment.get(name, "") for name in KEY_VARIABLES)
        for name in secrets.secret_env:
            if value := environment.get(name, ""):
                if len(value) < SHORTEST_VALUE:
                    raise click.UsageError(
                        f"--secret-env: {name} has {len(value)} characters, and a secret should have {SHORTEST_VALUE} "
                        "or more: ordinary text would be masked where it stands by accident"
                    )
                values.append(value)
            elif warns:
                click.echo(
                    f"warning: --secret-env: {name} is not set, so only what a text assigns to that name is known",
                    err=True,
                )
        if secrets.secret_file is not None:
            values += read_keys(secrets.secret_file, option="--secret-file")
        secrecy = cls((*dict.fromkeys(values),), secrets.secret_env, secrets.secrets == "refuse")
        try:
            secrecy.masker()
        except ReplayError as exc:
            raise click.UsageError(f"{'--secret-file' if secrets.secret_file else '--secret-env'}: {exc}") from exc
        return secrecy

    def masker(self, keys: Iterable[str] = ()) -> Masker:
        """
        Args:
            keys: that this process knows besides; one too short to be told from ordinary text is passed over.
        """
        return Masker.of((*self.values, *_keys(keys)), self.names)


def _keys(values: Iterable[str]) -> list[str]:
    return [value for value in values if len(value) >= SHORTEST_VALUE and value != agents.NO_KEY]
