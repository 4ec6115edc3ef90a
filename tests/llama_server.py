"""llama.cpp's own HTTP server with a small model, as a program: prints ``READY PORT`` and serves until it is killed.

``python tests/llama_server.py FOLDER MODEL [N_CTX]``; FOLDER is one for ``sys.path`` that holds xllamacpp.
"""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import programs


@contextmanager
def llama_server(*, n_ctx: int = 8192) -> Iterator[str]:
    """Run one with the small model; its base URL, which ends in ``/v1``."""
    command = [sys.executable, __file__, str(programs.llama()), str(programs.model()), str(n_ctx)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        words = process.stdout.readline().split()
        assert words[:1] == ["READY"], f"it ended with {process.wait()}"
        yield f"http://127.0.0.1:{words[1]}/v1"
    finally:
        process.kill()
        process.wait()


def main(folder: str, model: str, n_ctx: str = "8192") -> None:
    sys.path.insert(0, folder)
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = model, ["127.0.0.1"], 0
    params.n_ctx, params.n_parallel, params.n_batch, params.n_ubatch = int(n_ctx), 1, 64, 64
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # more stand still on a busy machine
    params.use_jinja, params.warmup, params.verbosity = True, False, 0
    server = xllamacpp.Server(params)
    print("READY", server.listening_address.rpartition(":")[2], flush=True)
    signal.pause()


if __name__ == "__main__":
    main(*map(str, map(Path, sys.argv[1:3])), *sys.argv[3:])
