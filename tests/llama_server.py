"""llama.cpp's own HTTP server with a small model, as a program: prints ``READY PORT`` and serves until it is killed.

``python tests/llama_server.py FOLDER MODEL SETTINGS``; FOLDER is one for ``sys.path`` that holds xllamacpp, SETTINGS
a JSON object.
"""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import programs
from attrs import define, field


@define(eq=False)
class LlamaServer:
    """One such program, which can be killed and started again at the same address.

    Attributes:
        n_ctx: its window in tokens; it has one slot.
        key: what it demands as a bearer token; "" for nothing.
        chat_template: in place of the model's own; "" for that one.
        port: 0 until it was started.
    """

    n_ctx: int = 8192
    key: str = ""
    chat_template: str = ""
    port: int = 0
    _process: "subprocess.Popen[str] | None" = field(default=None, init=False)

    @property
    def url(self) -> str:
        """Its base URL, which ends in ``/v1``."""
        return f"http://127.0.0.1:{self.port}/v1"

    def start(self) -> None:
        """Return once it serves."""
        settings = {"n_ctx": self.n_ctx, "key": self.key, "chat_template": self.chat_template, "port": self.port}
        command = [sys.executable, __file__, str(programs.llama()), str(programs.model()), json.dumps(settings)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        words = self._process.stdout.readline().split()
        assert words[:1] == ["READY"], f"it ended with {self._process.wait()}"
        self.port = int(words[1])

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None


@contextmanager
def llama_server(*, n_ctx: int = 8192) -> Iterator[str]:
    """Run one; its base URL, which ends in ``/v1``."""
    server = LlamaServer(n_ctx)
    try:
        server.start()
        yield server.url
    finally:
        server.kill()


def main(folder: str, model: str, settings: dict[str, Any]) -> None:
    sys.path.insert(0, folder)
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path, params.hostnames, params.port = model, ["127.0.0.1"], settings["port"]
    params.n_ctx, params.n_parallel, params.n_batch, params.n_ubatch = settings["n_ctx"], 1, 64, 64
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = 1  # more stand still on a busy machine
    params.use_jinja, params.warmup, params.verbosity = True, False, 0
    params.endpoint_slots = params.endpoint_metrics = True
    if settings["key"]:
        params.api_keys = [settings["key"]]
    if settings["chat_template"]:
        params.chat_template = settings["chat_template"]
    server = xllamacpp.Server(params)
    print("READY", server.listening_address.rpartition(":")[2], flush=True)
    signal.pause()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
