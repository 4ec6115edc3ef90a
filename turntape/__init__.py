"""Turntape: the Responses API for coding agents over one WebSocket, recorded and replayed."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("turntape")
except PackageNotFoundError:  # run from a checkout that was never installed
    __version__ = "0+unknown"
