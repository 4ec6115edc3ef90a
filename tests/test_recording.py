"""A recording in the making, as far as it needs a clock."""

from pathlib import Path

import pytest
import trio

from turntape.core.seam import Opened
from turntape.recording import SILENCE_S, NewRecording


@pytest.mark.parametrize(("comes", "n_warnings"), [("to be recorded", 0), ("to no upstream", 0), ("not", 1)])
async def test_silence_is_said_once(
    comes: str, n_warnings: int, tmp_path: Path, autojump_clock: object, capsys: pytest.CaptureFixture[str]
) -> None:
    """An agent that has asked nothing after 15 seconds was probably not pointed here: it is said, once."""
    with NewRecording(tmp_path / "out.jsonl", option="--out") as recording:
        recording.hint.text = "Codex must be started as: codex -c"
        async with trio.open_nursery() as nursery:
            nursery.start_soon(recording.say_if_nobody_comes)
            await trio.sleep(SILENCE_S - 1)
            assert not capsys.readouterr().err
            if comes == "to be recorded":
                recording.session().receive(Opened(seed="00" * 16, wall=1e9), now=0.0)
            elif comes == "to no upstream":
                recording.n_unreachable += 1
    said = capsys.readouterr().err
    assert said.count("warning: nobody has connected yet, after 15 s; ") == n_warnings
    assert said.count("\n  Codex must be started as: codex -c\n") == n_warnings
