"""What is installed is what is in the tree: no module left out, nothing stale, every dependency declared."""

import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = {"core": "turntape/core", "transport": "turntape/transport", "replay": "turntape/replay"}
SOURCES = ("core", "transport", "replay", "turntape", "pyproject.toml", "README.md", "LICENSE")

IMPORTS = """
import importlib, pkgutil, turntape
for module in pkgutil.walk_packages(turntape.__path__, "turntape."):
    if not module.name.endswith(("__main__", "pytest_plugin")):  # the last is loaded by pytest alone
        importlib.import_module(module.name)
print(turntape.__file__)
"""


def in_tree() -> set[str]:
    """Every file of the package, by the name it should have once installed."""

    def files(folder: Path) -> list[Path]:
        return [path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts]

    found = {
        f"{inside}/{path.relative_to(ROOT / folder)}"
        for folder, inside in FOLDERS.items()
        for path in files(ROOT / folder)
    }
    return found | {f"turntape/{path.name}" for path in (ROOT / "turntape").iterdir() if path.is_file()}


def run(*command: str | Path, **more: object) -> str:
    """Run a command; its output is part of the failure if it fails."""
    ended = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False, **more)  # type: ignore[call-overload]
    assert ended.returncode == 0, f"{command}\n{ended.stdout}\n{ended.stderr}"
    return str(ended.stdout)


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel built from a copy of the tree, so that no earlier build can leave anything in it."""
    copy = tmp_path_factory.mktemp("tree")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            ignored = shutil.ignore_patterns("__pycache__")
            shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(ROOT / name, copy / name)
    out = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--wheel-dir", str(out), str(copy)]
    built = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    if built.returncode and not os.environ.get("CI") and "No matching distribution" in built.stderr:
        pytest.skip("the build tools cannot be fetched here")
    assert built.returncode == 0, built.stderr
    [path] = out.iterdir()
    return path


def test_the_wheel_holds_exactly_the_tree(wheel: Path) -> None:
    """Every module and data file of the tree is installed, and nothing else."""
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert names == in_tree()


def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    """The declared dependencies are enough: every module imports, and the command runs."""
    venv.create(tmp_path / "venv", with_pip=False)
    python = tmp_path / "venv" / "bin" / "python"
    run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", wheel)
    assert str(tmp_path) in run(python, "-c", IMPORTS, cwd=tmp_path)
    assert run(tmp_path / "venv" / "bin" / "turntape", "--version", cwd=tmp_path).startswith("turntape ")
