"""How one Responses server differs from another, as data: an ``Upstream`` is a row, and code asks the row."""

from attrs import frozen


@frozen
class Upstream:
    """What may be sent to a server. The defaults suit one that nothing is known about.

    Attributes:
        hosts: a server is recognised by its host, or by a domain that ends so.
        native: it takes what the API documents: namespaces, custom tools, ``allowed_tools``, phases, items that bring
            tools. Otherwise every tool is offered as a function, under a name that finds its way back.
        stored: it keeps responses that it was asked to store, and continues them.
        encrypted: it gives and takes ``reasoning.encrypted_content`` of its own.
        raw_reasoning: it takes reasoning items back with their text in clear.
        cache_key: ``prompt_cache_key`` may be sent.
        parallel: ``parallel_tool_calls`` may be sent.
        always_format: it wants ``text.format`` even where it is the default.
        key_header: header of the key; "authorization" for a bearer token.
        source: where this is known from.
        confidence: "measured" here, "documented" by the provider, or "assumed".
    """

    name: str = "unknown"
    hosts: tuple[str, ...] = ()
    native: bool = False
    stored: bool = False
    encrypted: bool = False
    raw_reasoning: bool = True
    cache_key: bool = False
    parallel: bool = True
    always_format: bool = False
    key_header: str = "authorization"
    source: str = "what every server understands"
    confidence: str = "assumed"


UPSTREAMS = (
    Upstream(
        "openai",
        ("api.openai.com",),
        native=True,
        stored=True,
        encrypted=True,
        raw_reasoning=False,
        cache_key=True,
        source="developers.openai.com, read 2026-10",
        confidence="documented",
    ),
    Upstream(
        "azure",
        (".openai.azure.com", ".services.ai.azure.com"),
        native=True,
        stored=True,
        encrypted=True,
        raw_reasoning=False,
        cache_key=True,
        key_header="api-key",
        source="learn.microsoft.com, read 2026-10",
        confidence="documented",
    ),
    Upstream(
        "xai",
        ("api.x.ai",),
        stored=True,
        encrypted=True,
        raw_reasoning=False,
        source="docs.x.ai, read 2026-10",
        confidence="documented",
    ),
    Upstream(
        "turntape",
        native=True,
        stored=True,
        cache_key=True,
        source="tests/backends/test_responses.py",
        confidence="measured",
    ),
    Upstream(
        "openrouter",
        ("openrouter.ai",),
        encrypted=True,
        raw_reasoning=False,
        source="openrouter.ai/docs, read 2026-10: a previous_response_id or store: true is refused",
        confidence="documented",
    ),
    Upstream(
        "deepseek",
        ("api.deepseek.com",),
        source="api-docs.deepseek.com, read 2026-10: stateless",
        confidence="documented",
    ),
    Upstream("groq", ("api.groq.com",), source="console.groq.com/docs, read 2026-10", confidence="documented"),
    Upstream(
        "fireworks",
        ("api.fireworks.ai",),
        stored=True,
        source="docs.fireworks.ai, read 2026-10",
        confidence="documented",
    ),
    Upstream(
        "vllm",
        stored=True,
        source="its source, 0.33.0: stored with VLLM_ENABLE_RESPONSES_API_STORE=1 only",
        confidence="documented",
    ),
    Upstream(
        "sglang",
        stored=True,
        source="its source, 0.5.23: stored with --enable-response-store only",
        confidence="documented",
    ),
    Upstream("llamacpp", source="its source, b11549: refuses previous_response_id", confidence="documented"),
    Upstream("ollama", source="its source, 2026-08", confidence="documented"),
    Upstream(
        "lmstudio",
        stored=True,
        always_format=True,
        source="its documentation to 0.4, and its bug tracker's 1576",
        confidence="documented",
    ),
)
"""Rows by name; the first whose host fits is taken for a URL. Servers at home have no host of their own: name them."""

UNKNOWN = Upstream()


def upstream_named(name: str) -> Upstream:
    """Raises ``ValueError`` that lists the names."""
    for row in UPSTREAMS:
        if row.name == name:
            return row
    names = ", ".join(row.name for row in UPSTREAMS)
    raise ValueError(f"no Responses server is known by the name {name[:64]!r}; known are: {names}")


def upstream_at(host: str) -> Upstream:
    """The row of a host; ``UNKNOWN`` if there is none."""
    for row in UPSTREAMS:
        if any(host == known or (known.startswith(".") and host.endswith(known)) for known in row.hosts):
            return row
    return UNKNOWN
