"""Find or install the programs that tests run unmodified: agents from npm, one folder per version.

They live outside the clone, in ``$TURNTAPE_TEST_CACHE`` or ``~/.cache/turntape-tests``, so that one download
serves every checkout. An installation appears there whole or not at all.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

CODEX = "0.171.0"
CODEX_APPEND = ("0.98.0", "0.101.0")  # the two releases that continue by response.append

_INSTALL_S = 600.0


def codex(version: str = CODEX) -> Path:
    """Return the Codex executable of this version; skip the test if it cannot be had outside CI."""
    return npm_program("@openai/codex", version, "codex")


def npm_program(package: str, version: str, name: str) -> Path:
    """Return the executable ``name`` of an npm package, installed by exact version if need be.

    A test that needs it is skipped where it cannot be had, with the reason. In CI that is a failure.
    """
    home = cache() / f"{package.strip('@').replace('/', '-')}-{version}"
    program = home / "node_modules" / ".bin" / name
    if not program.exists():
        try:
            _install(f"{package}@{version}", home)
        except (OSError, subprocess.SubprocessError) as exc:
            if os.environ.get("CI"):
                raise
            pytest.skip(f"{package} {version} cannot be installed here: {_reason(exc)}")
    return program


def cache() -> Path:
    """The folder that holds every installed program."""
    return Path(os.environ.get("TURNTAPE_TEST_CACHE") or Path.home() / ".cache" / "turntape-tests").expanduser()


def _install(spec: str, home: Path) -> None:
    """Install into a folder of our own, then move it into place: another run may be doing the same."""
    home.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".installing-", dir=home.parent))
    try:
        (folder / "package.json").write_text("{}")  # else npm would look for a project in the folders above
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--save-exact", spec]
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_INSTALL_S)
        try:
            folder.rename(home)
        except OSError:
            if not (home / "node_modules").is_dir():  # nobody else was faster: a real failure
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _reason(exc: Exception) -> str:
    if isinstance(exc, FileNotFoundError):
        return "npm is not installed"
    if isinstance(exc, subprocess.CalledProcessError):
        return " ".join((exc.stderr or str(exc)).split())[-300:]
    return str(exc)


if __name__ == "__main__":  # python tests/programs.py: fetch everything ahead of the tests
    for each in (CODEX, *CODEX_APPEND):
        print(codex(each), file=sys.stderr)
