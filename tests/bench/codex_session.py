"""How large a long session of a real Codex is, recorded at both taps in one run, and whether both recordings hold.

    python tests/bench/codex_session.py [TURNS] [--http]

A scripted model has Codex run a command of 2 KB of output TURNS - 1 times (199), with some hundred tokens a turn.
"""

import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import codex_client
import programs
from codex_client import Workspace, execute
from running import turntape

from turntape.replay.fixture import Fixture
from turntape.replay.verify import verify

SCRIPT = """
models = ["lab-model"]
tokens_per_s = 1500

[[rule]]
when = {{ max_outputs = {last} }}
say = [
  {{ summary = "**Step {{n_outputs}}**, I look at the next part of the file and think about it." }},
  {{ text = "Now I print some lines, compare them with the lines before, and go on with the next part of the task if all is \
well, as it has been in each of the steps that came before this one, one after the other.", phase = "commentary" }},
  {{ call = "exec_command", arguments = {{ cmd = "for i in $(seq 40); do echo \\"step {{n_outputs}} line $i: the quick brown fox\\"; done" }} }},
]

[[rule]]
say = [{{ text = "Done.", phase = "final_answer" }}]
"""


def main() -> None:
    n_turns = int(next((word for word in sys.argv[1:] if word.isdigit()), 200))
    codex_client.PATIENCE_S = 30.0 + 3.0 * n_turns
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "script.toml").write_text(SCRIPT.format(last=n_turns - 2))
        seam, relay = folder / "seam.jsonl", folder / "relay.jsonl"
        recorder = ("record", "--out", seam, "--backend", f"scripted:{folder / 'script.toml'}")
        with turntape(*recorder, folder=folder / "1") as server:
            with turntape("record", "--upstream", server.url, "--out", relay, folder=folder / "2") as tap:
                workspace = Workspace(folder / "work")
                workspace.point_at(tap.url, websocket="--http" not in sys.argv)
                began = time.monotonic()
                ran = execute(programs.codex(), workspace, "Do all the steps.")
                assert (ran.code, ran.complaints) == (0, []), ran.output + ran.errors
                print(f"Codex took {time.monotonic() - began:.0f} s")
                assert tap.stop() == 0, tap.errors
            assert server.stop() == 0, server.errors
        for path in (seam, relay):
            print(f"{path.stem}: {path.stat().st_size:,} bytes; {verify(Fixture.load(path))}")


if __name__ == "__main__":
    main()
