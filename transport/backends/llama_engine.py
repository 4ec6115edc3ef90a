"""llama.cpp in this process, through xllamacpp: a model that is loaded once, and answers that come from worker threads."""

import contextlib
import logging
import os
import secrets
import tempfile
import threading
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any

import trio
from attrs import define, field, frozen

logger = logging.getLogger(__name__)

MAX_CHUNKS = 256
"""Chunks of one answer that wait for a slow reader; then the thread that brings them waits too."""

REPORT_EVERY_S = 5.0


class EngineError(Exception):
    """llama.cpp could not load the model, or is not installed; the text says what to do."""


@frozen
class EngineSettings:
    """How to run a model.

    Attributes:
        n_ctx: tokens of the window of each slot.
        n_slots: answers that are sampled at once; others wait.
        n_batch: tokens of one step of a prefill, which is also how soon a cancelled one ends: 64 are 0.3 s on two CPU
            cores with a model of 135M.
        threads: CPU threads; 0 for half of the CPUs that this process may use, which is their cores where each counts
            twice. llama.cpp's threads wait for each other after every operation: with one too many on a busy machine,
            2 on 2 CPUs, it was 7 times slower than with 1 (measured).
        n_gpu_layers: layers that a GPU holds, where xllamacpp was built for one; -1 for as many as fit.
    """

    n_ctx: int = 8192
    n_slots: int = 1
    n_batch: int = 64
    threads: int = 0
    n_gpu_layers: int = -1


@define(eq=False)
class Answer:
    """One answer between the thread that brings its chunks and the task that reads them.

    Attributes:
        failure: what the call into llama.cpp raised.
    """

    failure: Exception | None = None
    _token: trio.lowlevel.TrioToken = field(factory=trio.lowlevel.current_trio_token)
    _changed: threading.Condition = field(factory=threading.Condition)
    _chunks: list[bytes] = field(factory=list)
    _ended: bool = False
    _stopped: bool = False
    _ready: trio.Event = field(factory=trio.Event)

    async def receive(self) -> list[bytes]:
        """Every chunk that has come since; none once the answer has ended."""
        while True:
            with self._changed:
                chunks, self._chunks = self._chunks, []
                ended = self._ended
                self._changed.notify_all()
            if chunks or ended:
                return chunks
            await self._ready.wait()
            self._ready = trio.Event()

    def stop(self) -> None:
        """Nobody reads any more: the next chunk ends the work."""
        with self._changed:
            self._stopped = True
            self._changed.notify_all()

    def put(self, chunk: bytes) -> bool:
        """Called by the thread; true tells llama.cpp to stop."""
        with self._changed:
            while len(self._chunks) >= MAX_CHUNKS and not self._stopped:
                self._changed.wait()
            if self._stopped:
                return True
            self._chunks.append(chunk)
            is_first = len(self._chunks) == 1
        if is_first:
            self._wake()
        return False

    def end(self, failure: Exception | None) -> None:
        """Called by the thread: nothing more comes."""
        with self._changed:
            self._ended, self.failure = True, failure
        self._wake()

    def _wake(self) -> None:
        with contextlib.suppress(trio.RunFinishedError):
            self._token.run_sync_soon(lambda: self._ready.set())


@define(eq=False)
class Engine:
    """A loaded model. Make it with ``load``."""

    server: Any = field(repr=False)
    slots: trio.CapacityLimiter

    @classmethod
    async def load(cls, path: Path, settings: EngineSettings) -> "Engine":
        """Load in a thread, and say in the log every few seconds that it still loads.

        Raises:
            EngineError: xllamacpp is missing, or llama.cpp cannot load the file.
        """
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_report, path)
            loaded = await trio.to_thread.run_sync(_load, path, settings)
            nursery.cancel_scope.cancel()
        if isinstance(loaded, EngineError):  # not raised in the nursery, which would wrap it
            raise loaded
        return cls(loaded, trio.CapacityLimiter(settings.n_slots))

    @contextlib.asynccontextmanager
    async def ask(self, body: bytes) -> AsyncIterator[Answer]:
        """Begin a chat completion as soon as a slot is free. Leaving the block stops it: decoding at its next token,
        a prefill at its next batch; the slot is free when it has."""
        answer = Answer()
        token = trio.lowlevel.current_trio_token()
        await self.slots.acquire_on_behalf_of(answer)
        release = partial(self.slots.release_on_behalf_of, answer)

        def work() -> None:
            failure: Exception | None = None
            try:
                self.server.handle_chat_completions(body, answer.put)
            except Exception as exc:  # noqa: BLE001 - llama.cpp's own, of any class; the reader tells
                failure = exc
            answer.end(failure)

        def delivered(_: object) -> None:
            with contextlib.suppress(trio.RunFinishedError):
                token.run_sync_soon(release)

        trio.lowlevel.start_thread_soon(work, delivered)
        try:
            yield answer
        finally:
            answer.stop()

    async def aclose(self) -> None:
        """Wait for the answers that still run, and give the model's memory back."""
        with trio.CancelScope(shield=True):
            for n in range(int(self.slots.total_tokens)):
                await self.slots.acquire_on_behalf_of(("closing", n))
            await trio.to_thread.run_sync(self._unload)

    def _unload(self) -> None:
        self.server = None


async def _report(path: Path) -> None:
    start = trio.current_time()
    while True:
        await trio.sleep(REPORT_EVERY_S)
        logger.warning("loading %s: %.0f s so far", path.name, trio.current_time() - start)


def _half_of_the_cpus() -> int:
    n_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, n_cpus // 2)


def _load(path: Path, settings: EngineSettings) -> Any:
    """xllamacpp's server object, or an ``EngineError``."""
    try:
        import xllamacpp  # type: ignore[import-untyped, unused-ignore, import-not-found]
    except ImportError as exc:
        return EngineError(f"The backend llama: needs xllamacpp ({exc}). Install it: pip install 'turntape[llama]'.")
    params = xllamacpp.CommonParams()
    params.model.path = str(path)
    params.n_ctx = settings.n_ctx * settings.n_slots
    params.n_parallel = settings.n_slots
    params.n_batch = params.n_ubatch = settings.n_batch
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings.threads or _half_of_the_cpus()
    params.n_gpu_layers = settings.n_gpu_layers
    params.use_jinja, params.warmup, params.ctx_shift = True, False, False
    params.verbosity = 0  # errors only
    # The library always serves HTTP too. Nobody may come in there: a socket that is gone at once, and a key that is not told.
    params.ui = params.endpoint_slots = params.endpoint_props = params.endpoint_metrics = False
    params.n_threads_http, params.api_keys = 1, [secrets.token_hex(32)]
    try:
        with tempfile.TemporaryDirectory(prefix="turntape-") as folder:
            params.hostnames = [f"{folder}/s.sock"]
            return xllamacpp.Server(params)
    except Exception as exc:  # noqa: BLE001 - a C++ exception, of whatever class Cython makes of it
        return EngineError(
            f"llama.cpp cannot load {path} ({type(exc).__name__}). The file may be cut short, of a kind that this version "
            "of xllamacpp does not know, or too large for the memory; a smaller window needs less."
        )
