"""Who answered a sample: whoever chooses among backends says it here, whoever asked reads it."""

from contextvars import ContextVar

from attrs import define


@define
class Served:
    """The backend that was asked last for one sample, as the configuration names it, and its name for the model."""

    backend: str = ""
    model: str = ""


_SERVED: ContextVar[Served] = ContextVar("served")
"""Of the task that asks for the sample. A context, so that neither the seam nor every backend's interface has to carry it."""


def watch(served: Served) -> None:
    """Let ``served`` be filled by what this task asks for."""
    _SERVED.set(served)


def say(backend: str, model: str) -> None:
    """``backend`` is asked now. Does nothing where nobody wants to know."""
    if served := _SERVED.get(None):
        served.backend, served.model = backend, model
