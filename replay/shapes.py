"""What keys look like: the table of known shapes, each with where its form is known from.

A shape is found by a literal that it holds and then matched from there. Its pattern has a group ``k``, which stays,
and a group ``b``, which is the secret. No character can belong to either of the two by choice, so that a text that
is read in pieces is split between them as the whole text is. Nothing here looks at more than 64 characters before a key.

Texts are matched as they are found: plain, as JSON inside JSON, in a URL, or in the colors of a terminal. So a key may
stand right behind ``\\n``, ``%3D`` or ``\\u001b[31m``, and the line ends of a private key may be escaped any number of times.
"""

from collections.abc import Callable

import regex
from attrs import field, frozen

from .errors import ReplayError

MASK = "[masked]"
"""Stands for each secret. No key can hold it, or begin right behind it: so a masked text is masked no further."""

LITERAL = 16
"""Characters of a configured secret that are looked for."""

LOOK_BEHIND = 64
"""Characters before a key that a shape may look at, its own first literal included."""

_COLOR = r"(?:\x1b|\\(?:u001b|u001B|x1b|x1B|033|e))\[[0-9;]{0,16}[A-Za-z]"
_ESCAPE = rf"(?<=\\[bfnrt])|(?<=\\u[0-9a-fA-F]{{4}})|(?<=%[0-9a-fA-F]{{2}})|(?<={_COLOR})"
_APART = rf"(?:(?<![A-Za-z0-9_-])(?<!{regex.escape(MASK)})|{_ESCAPE})"  # in the middle of base64url anything may look like a short prefix
_AFTER = (
    rf"(?:(?<![A-Za-z0-9])(?<!{regex.escape(MASK)})|{_ESCAPE})"  # for prefixes that are long enough to be no accident
)
_QUOTES = r"[\"'\\]*"
_IS = rf"{_QUOTES}\s*(?:[:=]|=>)\s*{_QUOTES}"


@frozen
class Shape:
    """One kind of secret.

    Attributes:
        kind: how it is named to people.
        literals: a secret of this kind begins with one of them.
        pattern: matches from there.
        plausible: whether what matched is one, and no word or placeholder that looks alike.
        closed: a key that begins inside another of its kind ends with it.
        begins: matches what stands before the secret, if a key whose secret begins inside another's ends with it, as
            far as that goes; None if it may end elsewhere, or if it is closed.
        source: where the form is known from: "documented" by who issues it, "standard", or "assumed" from keys seen.
    """

    kind: str
    literals: tuple[str, ...] = field(repr=False)
    pattern: "regex.Pattern[str]" = field(repr=False)
    plausible: Callable[[str], bool] = field(repr=False)
    closed: bool = True
    begins: "regex.Pattern[str] | None" = field(default=None, repr=False)
    source: str = "assumed"


def mixed(body: str) -> bool:
    """Holds a digit, or letters of both cases: not a few words with hyphens."""
    return any(c.isdigit() for c in body) or (body != body.lower() and body != body.upper())


def _one_long_run(body: str) -> bool:
    """Holds 16 characters in a row that are ``mixed``: not the name of a style or of a package."""
    return any(len(run) >= 16 and mixed(run) for run in body.replace("_", "-").split("-"))


def _digits_and_letters(body: str) -> bool:
    return sum(c.isdigit() for c in body) >= 2 and sum(c.isalpha() for c in body) >= 2


def _anything(body: str) -> bool:
    return True


def _shape(
    kind: str,
    literals: str,
    body: str,
    *,
    keep: str = "",
    after: str = _APART,
    end: str = "",
    plausible: Callable[[str], bool] = mixed,
    run: bool = True,
    source: str = "assumed",
) -> Shape:
    """
    Args:
        literals: separated by "|"; that with which one was found is the beginning of its pattern.
        keep: what stands between the literal and the secret.
        after: what may stand before.
        end: what must follow.
        run: the secret is a run of characters of one kind, as long as it can be.
    """
    names = tuple(literals.split("|"))
    begins = "|".join(map(regex.escape, names))
    pattern = regex.compile(f"{after}(?P<k>(?:{begins}){keep})(?P<b>{body}){end}")
    head = regex.compile(f"{after}(?:{begins}){keep}") if keep and run and not end else None
    return Shape(kind, names, pattern, plausible, closed=not keep, begins=head, source=source)


_URL_SAFE = "[A-Za-z0-9_-]"
_LINE_END = r"(?:\s|\\+[nrt]|\\+u000[aAdD9])"
_HEADER = r"[A-Z][A-Za-z-]{1,30}: [^\n\r\"\\]{0,200}"  # Proc-Type, DEK-Info, Version
_NEW_LINE = r"(?:(?:[\n\r]|\\+[nr]|\\+u000[aAdD])[ \t]*)"  # no part of a header, so headers are split in one way only
_PEM_BODY = (
    rf"(?:{_LINE_END}*{_HEADER}(?:{_NEW_LINE}+{_HEADER}){{0,15}})?"
    rf"{_LINE_END}*(?:[A-Za-z0-9+/=]|\\+/){{16}}(?:[A-Za-z0-9+/=]|\\+/|{_LINE_END})*"
)

SHAPES: tuple[Shape, ...] = (
    _shape(
        "OpenAI key",
        "sk-proj-|sk-svcacct-|sk-admin-",
        rf"{_URL_SAFE}{{20,}}",
        after=_AFTER,
        source="documented",  # OpenAI: API keys of projects, service accounts and administrators
    ),
    _shape("Anthropic key", "sk-ant-", rf"{_URL_SAFE}{{20,}}", after=_AFTER, source="documented"),
    _shape("OpenRouter key", "sk-or-", rf"{_URL_SAFE}{{20,}}", after=_AFTER),
    _shape(  # OpenAI before there were projects, DeepSeek and many others
        "API key",
        "sk-",
        rf"(?!(?:proj|svcacct|admin|ant|or)-){_URL_SAFE}{{20,}}",
        plausible=_one_long_run,
    ),
    _shape("xAI key", "xai-", r"[A-Za-z0-9]{20,}"),
    _shape("Groq key", "gsk_", r"[A-Za-z0-9]{20,}"),
    _shape("Cerebras key", "csk-", r"[A-Za-z0-9]{20,}"),
    _shape("Perplexity key", "pplx-", r"[A-Za-z0-9]{32,}"),
    _shape("NVIDIA key", "nvapi-", rf"{_URL_SAFE}{{32,}}"),
    _shape("Replicate key", "r8_", r"[A-Za-z0-9]{32,}"),
    _shape("Hugging Face token", "hf_", r"[A-Za-z0-9]{30,}"),
    _shape("GitHub token", "ghp_|gho_|ghu_|ghs_|ghr_", r"[A-Za-z0-9]{36,}", source="documented"),
    _shape("GitHub token", "github_pat_", r"[A-Za-z0-9_]{22,}", source="documented"),
    _shape("GitLab token", "glpat-|gldt-|glrt-|glptt-", r"[A-Za-z0-9_.-]{20,}", source="documented"),
    _shape("Slack token", "xoxb-|xoxp-|xoxa-|xoxr-|xoxs-|xoxe-|xoxc-|xoxd-|xapp-", r"[A-Za-z0-9%-]{10,}"),
    _shape("AWS access key", "AKIA|ASIA", r"[A-Z0-9]{16}", plausible=_anything, source="documented"),
    _shape(
        "AWS secret key",
        "aws_secret_access_key|AWS_SECRET_ACCESS_KEY|SecretAccessKey|secretAccessKey|aws_session_token|"
        "AWS_SESSION_TOKEN|SessionToken|sessionToken",
        r"[A-Za-z0-9/+=]{40,}",
        keep=_IS,
        after="",
        source="documented",
    ),
    _shape("Google key", "AIza", rf"{_URL_SAFE}{{35}}", source="documented"),
    _shape("Google secret", "GOCSPX-", rf"{_URL_SAFE}{{20,}}"),
    _shape("Google access token", "ya29.", rf"{_URL_SAFE}{{20,}}"),
    _shape("npm token", "npm_", r"[A-Za-z0-9]{36,}", source="documented"),
    _shape("PyPI token", "pypi-", rf"{_URL_SAFE}{{50,}}", source="documented"),
    _shape("Stripe key", "sk_live_|rk_live_|sk_test_|rk_test_|whsec_", r"[A-Za-z0-9]{16,}", source="documented"),
    _shape("SendGrid key", "SG.", rf"{_URL_SAFE}{{16,32}}\.{_URL_SAFE}{{32,}}"),
    _shape("DigitalOcean token", "dop_v1_|doo_v1_|dor_v1_", r"[a-f0-9]{64}", plausible=_anything, source="documented"),
    _shape(
        "JSON Web Token",
        "eyJ",
        rf"{_URL_SAFE}{{10,8192}}\.eyJ{_URL_SAFE}{{8,}}\.{_URL_SAFE}*",
        source="standard",  # RFC 7519; both halves are JSON objects
    ),
    _shape(
        "private key",
        "-----BEGIN ",
        _PEM_BODY,
        keep=r"(?:[A-Z0-9]{1,16} ){0,3}PRIVATE KEY(?: BLOCK)?-----",
        after="",
        plausible=_anything,
        run=False,
        source="standard",  # RFC 7468; the end may be cut off
    ),
    _shape(
        "bearer token",
        "Bearer|bearer|BEARER",
        r"[A-Za-z0-9._~+/=-]{16,}",
        keep=r"(?:[ \t]|%20){1,4}",
        after=_AFTER,
        source="standard",  # RFC 6750
    ),
    _shape(
        "basic credentials",
        "Basic|basic|BASIC",
        r"[A-Za-z0-9+/]{6,}={0,2}",
        keep=r"[ \t]{1,4}",
        after=rf"(?i:(?<=authorization{_QUOTES[:-1]}{{0,6}}\s{{0,4}}[:=,]\s{{0,4}}{_QUOTES[:-1]}{{0,6}}))",
        plausible=_anything,
        source="standard",  # RFC 7617
    ),
    _shape(
        "API key",
        "api-key|api_key|apikey|apiKey|Api-Key|ApiKey|API_KEY|API-KEY|APIKEY|API-Key",
        rf"{_URL_SAFE}{{16,}}",
        keep=_IS,
        after="",
        plausible=_digits_and_letters,
    ),
    _shape(
        "password in a URL",
        "://",
        r"[^\s\"'\\<>@/\[\](){}$*`]{3,128}",
        keep=r"[^\s\"'\\<>@/:\[\](){}$*`]{0,40}:",
        after="",
        end="@",
        plausible=_anything,
        source="standard",  # RFC 3986, userinfo
    ),
)


def named(name: str) -> Shape:
    """What a text assigns to ``name``: in a shell, a configuration file or JSON.

    Raises:
        ReplayError: it is no name.
    """
    if not regex.fullmatch(r"[A-Za-z_][A-Za-z0-9_.-]{1,63}", name):
        raise ReplayError(f"{name[:64]!r} cannot be the name of a secret: a name is letters, digits, '_', '-' and '.'.")
    body = r"[^\s\"'\\,;(){}\[\]<>$`&]{3,}"
    return _shape(f"value of {name}", name, body, keep=_IS, after=_APART, plausible=_anything, source="configured")


def configured(value: str) -> Shape:
    """One secret that somebody named, in one of its forms: all of it is hidden."""
    pattern = regex.compile(f"(?P<k>)(?P<b>{regex.escape(value, literal_spaces=True)})")
    return Shape("configured secret", (value[:LITERAL],), pattern, _anything, closed=False, source="configured")
