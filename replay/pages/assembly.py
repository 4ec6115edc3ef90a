"""One self-contained page out of a template, a style, scripts and what they show, embedded so that none of it can run."""

import base64
import hashlib
import html
from collections.abc import Sequence
from importlib.resources import files
from string import Template
from typing import Any

from turntape.replay.packing import encode

HARMLESS = {"<": "\\u003c", ">": "\\u003e", "&": "\\u0026", "\u2028": "\\u2028", "\u2029": "\\u2029"}
"""What could end or begin an element, or a line of a script, as it is written inside a JSON string."""


def page(title: str, shown: Any, scripts: Sequence[str], styles: Sequence[str]) -> str:
    """A whole HTML document.

    Its content security policy lets nothing run but these scripts, by their hash, and nothing be fetched: a text
    in ``shown`` stays a text even if a script of ours were to put it into the document by mistake.

    Args:
        shown: any JSON value, for the scripts.
        scripts, styles: names of files in this folder. The scripts are one module: each sees what the others name.
    """
    style = "\n".join(map(_source, styles))
    script = "\n".join(map(_source, scripts))
    policy = (
        f"default-src 'none'; script-src '{_source_hash(script)}'; style-src '{_source_hash(style)}'; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    return Template(_source("template.html")).substitute(
        policy=policy, title=html.escape(title), style=style, shown=embedded(shown), script=script
    )


def embedded(value: Any) -> str:
    """``value`` as JSON that is safe inside a ``script`` element of any kind."""
    encoded = encode(value).decode()
    for character, escape in HARMLESS.items():
        encoded = encoded.replace(character, escape)
    return encoded


def _source(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _source_hash(source: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(source.encode()).digest()).decode()
