"""What is masked in a text, what is left alone, and that a text in pieces is masked as the whole is."""

import json
import random
from pathlib import Path

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from turntape.replay.errors import ReplayError
from turntape.replay.secrets import DEFAULT, Masker, allowed_headers
from turntape.replay.shapes import MASK

FIXTURES = [*Path(__file__).parents[2].glob("fixtures/*.jsonl"), *Path(__file__).parents[2].glob("docs/*.jsonl")]

LONG = "Ab3dE6gH9jK2mN5pQ8sT1vW4yZ7b"  # 28 characters
BASE64 = "MIIEowIBAAKCAQEAu1SU1LfVLPHCozMxH2Mo4lgOEePzNm0tRgeLezV6ffAt0gun"

KEYS = {
    "sk-" + LONG + LONG[:20]: "sk-[masked]",
    "sk-0123456789abcdef0123456789abcdef": "sk-[masked]",
    "sk-proj-" + LONG + "_-" + LONG: "sk-proj-[masked]",
    "sk-svcacct-" + LONG: "sk-svcacct-[masked]",
    "sk-ant-api03-" + LONG: "sk-ant-[masked]",
    "sk-or-v1-" + LONG: "sk-or-[masked]",
    "xai-" + LONG * 2: "xai-[masked]",
    "gsk_" + LONG: "gsk_[masked]",
    "csk-" + LONG: "csk-[masked]",
    "hf_" + LONG + "xyz": "hf_[masked]",
    "ghp_" + LONG + "01234567": "ghp_[masked]",
    "github_pat_" + LONG + "_" + LONG: "github_pat_[masked]",
    "glpat-" + LONG: "glpat-[masked]",
    "xoxb-123456789012-" + LONG: "xoxb-[masked]",
    "AKIAIOSFODNN7EXAMPLE": "AKIA[masked]",
    "aws_secret_access_key = wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "aws_secret_access_key = [masked]",
    "AIzaSy" + LONG + "-_12345"[:5]: "AIza[masked]",
    "npm_" + LONG + "01234567": "npm_[masked]",
    "pypi-" + LONG * 2: "pypi-[masked]",
    "sk_live_" + LONG: "sk_live_[masked]",
    "rk_live_" + LONG: "rk_live_[masked]",
    "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.dBjftJeZ4CVP-mB92K27": "eyJ[masked]",
    "Authorization: Bearer " + LONG: "Authorization: Bearer [masked]",
    "authorization: Basic dXNlcjpwYXNzd29yZA==": "authorization: Basic [masked]",
    "x-api-key: " + LONG: "x-api-key: [masked]",
    "postgresql://app:hunter22@db.example/main": "postgresql://app:[masked]@db.example/main",
    f"-----BEGIN RSA PRIVATE KEY-----\n{BASE64}\n{BASE64}\n-----END RSA PRIVATE KEY-----": (
        "-----BEGIN RSA PRIVATE KEY-----[masked]-----END RSA PRIVATE KEY-----"
    ),
}

INNOCENT = [
    "resp_0123456789abcdef0123456789abcdef msg_0123456789abcdef0123456789abcdef call_Ab3dE6gH9jK2mN5pQ8sT1vW4",
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8, sha256 " + "ab12" * 16,
    "id 123e4567-e89b-12d3-a456-426614174000",
    "the task-based risk-averse disk-encryption sk-learn sk-circle-fade-dot-animation-container pip install xai-org",
    "Basic understanding of the bearer of bad news; Bearer token; the basic idea",
    "http://localhost:8080/path?x=1@y user@example.com ssh://git@github.com:22/x https://$USER:$PASS@host",
    "-----BEGIN CERTIFICATE-----\n" + BASE64 + "\n-----END CERTIFICATE-----",
    "-----BEGIN PRIVATE KEY-----\n...\n-----END PRIVATE KEY-----",
    "api_key = os.environ['OPENAI_API_KEY'], api_key: str | None = None, get_api_key()",
    'OPENAI_API_KEY="$KEY" turntape serve --key-file keys.txt',
]


@pytest.mark.parametrize(("key", "masked"), KEYS.items())
def test_each_known_shape_is_masked_wherever_it_stands(key: str, masked: str) -> None:
    """In plain text, in JSON and in JSON inside JSON, behind a line end too, the mask is the same."""
    text = f"before\n{key}\nafter"
    expected = f"before\n{masked}\nafter"
    assert DEFAULT.text(key) == masked
    for _ in range(3):
        assert DEFAULT.text(text) == expected
        assert DEFAULT.text(expected) is expected  # a masked text is left alone
        text, expected = json.dumps({"output": text}), json.dumps({"output": expected})


@pytest.mark.parametrize("text", INNOCENT)
def test_what_only_looks_like_a_key_is_left_alone(text: str) -> None:
    """Ids, hashes, certificates, prose and code that reads a key are not masked."""
    assert DEFAULT.text(text) is text


def test_encoded_images_and_ciphertexts_are_left_alone() -> None:
    """Three megabytes of base64 and base64url hold no key."""
    chance = random.Random(4)
    for alphabet in ("+/", "-_"):
        letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789" + alphabet
        image = "data:image/png;base64," + "".join(chance.choices(letters, k=1_500_000))
        assert DEFAULT.text(image) is image


@pytest.mark.parametrize("path", FIXTURES, ids=lambda path: path.name)
def test_the_recordings_of_this_repository_hold_no_secret(path: Path) -> None:
    """Masking them changes nothing."""
    content = path.read_text()
    assert DEFAULT.text(content) is content


PARTS = [
    "s",
    "sk",
    "sk-",
    "sk-proj-",
    "Bearer",
    "MY_TOKEN",
    "-----BEGIN ",
    "eyJ",
    ".eyJ",
    "api_key",
    "AKIA",
    LONG,
    LONG[:9],
]
MARKS = [" ", "\n", "\\n", '"', "@", "://", "=", ":", "a", "İ", "é", *MASK]
PIECES = st.sampled_from([*KEYS, *INNOCENT, *PARTS, *MARKS, "hunter", "hunter2hunter2", "aaaaaaa"])
TOLD = Masker.of(values=["hunter2hunter2", "aaaaaa", "ter2hun+é"], names=["MY_TOKEN"])


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=6), st.data())
@example(["task-", LONG, LONG, LONG, LONG, " "], None)
@example(
    ["-----BEGIN RSA PRIVATE KEY-----\n", "eyJ", LONG, "-----END"], None
)  # what may begin a second inside the first
def test_a_text_in_pieces_is_masked_as_the_whole(texts: list[str], data: st.DataObject | None) -> None:
    """Wherever it is cut, what goes out joins to the masked text, and a masked text stays as it is."""
    whole = "".join(texts)
    masked = TOLD.text(whole)
    assert TOLD.text(masked) == masked
    cuts = data.draw(st.lists(st.integers(0, len(whole)), max_size=12).map(sorted)) if data else [*range(len(whole))]
    stream, out = TOLD.stream(), []
    for start, end in zip([0, *cuts], [*cuts, len(whole)], strict=True):
        out.append(stream.feed(whole[start:end]))
        assert masked.startswith("".join(out))  # nothing that has gone out could have been part of a secret
    assert "".join(out) + stream.flush() == masked


def test_ordinary_pieces_go_out_as_they_come() -> None:
    """Only what may be a secret is held, and its known beginning is not."""
    stream = DEFAULT.stream()
    for delta in ("The ", "ri", "s", "k", "-", "learn and ", "Bear", "er", " ", "of news ", "s", "k", "-"):
        if delta == "of news ":  # "of" might have been a token
            assert (stream.feed("of"), stream.holding, stream.feed(" news ")) == ("", True, "of news ")
        else:
            assert stream.feed(delta) == delta and not stream.holding
    assert stream.feed(LONG) == "" and stream.holding
    assert stream.feed(LONG) == ""
    assert stream.feed(" ok") == "[masked] ok"


def test_a_configured_value_is_masked_in_every_form() -> None:
    """Also where JSON escapes it, once or twice."""
    masker = Masker.of(values=['pä"ss\\word'])
    text = 'it is pä"ss\\word.'
    for _ in range(3):
        assert "word" not in masker.text(text) and "ss" not in masker.text(text)
        text = json.dumps(text)


def test_what_is_assigned_to_a_configured_name_is_masked() -> None:
    """In a shell, in a configuration file and in JSON."""
    masker = Masker.of(names=["MY_TOKEN"])
    assert masker.text("export MY_TOKEN=abc; MY_TOKEN: abc") == f"export MY_TOKEN={MASK}; MY_TOKEN: {MASK}"
    assert masker.text('{"MY_TOKEN": "abc"}') == f'{{"MY_TOKEN": "{MASK}"}}'
    assert masker.text('{\\"MY_TOKEN\\":\\"abc\\"}') == f'{{\\"MY_TOKEN\\":\\"{MASK}\\"}}'
    assert masker.text("echo $MY_TOKEN; MY_TOKEN=$OTHER") == "echo $MY_TOKEN; MY_TOKEN=$OTHER"


def test_a_secret_that_ordinary_text_would_hold_is_refused() -> None:
    """A short value and a name that is none are refused, and the value is not shown."""
    with pytest.raises(ReplayError, match="5 characters") as refused:
        Masker.of(values=["abcde"])
    assert "abcde" not in str(refused.value)
    with pytest.raises(ReplayError, match="name"):
        Masker.of(names=["MY TOKEN"])


def test_random_text_is_warned_of_and_kept() -> None:
    """Entropy alone masks nothing, and ids and hashes are not even warned of."""
    word = "xK9vQ2mZ7rT4wB8nL5pD3hJ6fG1sA0cV"
    (finding,) = DEFAULT.findings(f"see {word} there")
    assert (finding.kind, finding.start, finding.end, finding.certain) == ("random text", 4, 36, False)
    assert DEFAULT.text(word) is word
    assert not DEFAULT.findings("9fceb02d0ae598e95dc970b74767f19372d61af8 resp_0123456789abcdef0123456789abcdef")
    (finding,) = DEFAULT.findings("DB_PASSWORD=correct-horse")
    assert not finding.certain


def test_findings_say_where_the_secret_is() -> None:
    """What a mask keeps stands before it."""
    text = "key: sk-proj-" + LONG + "."
    (finding,) = DEFAULT.findings(text)
    assert (finding.kind, text[finding.start : finding.end], finding.certain) == ("OpenAI key", LONG, True)


def test_only_listed_headers_are_kept() -> None:
    """Keys, cookies and unknown headers are dropped, and a key in a listed one is masked."""
    kept = allowed_headers(
        {
            "Authorization": "Bearer " + LONG,
            "Cookie": "session=1",
            "api-key": LONG,
            "X-Mine": "x",
            "User-Agent": "codex/1 sk-proj-" + LONG,
            "Sec-WebSocket-Protocol": "realtime, openai-insecure-api-key." + LONG,
            "OpenAI-Beta": "responses_websockets=2026-02-06",
        }
    )
    assert kept == {
        "user-agent": "codex/1 sk-proj-[masked]",
        "sec-websocket-protocol": "realtime, [masked]",
        "openai-beta": "responses_websockets=2026-02-06",
    }


@pytest.mark.parametrize(
    "unit",
    [
        *("sk-", "sk-a1-", "eyJ.", "eyJaaaaaaaaaa.", "://", "://a:bcd", "Bearer a", "api-key:", "-----BEGIN "),
        *("SessionToken=", "MY_TOKEN=", "-----BEGIN PRIVATE KEY-----Ab: "),
    ],
)
def test_no_text_costs_more_than_one_pass(unit: str) -> None:
    """A megabyte of beginnings is read in its own length, not in its square."""
    text = unit * (1_000_000 // len(unit))
    assert len(TOLD.text(text)) <= len(text) + len(MASK)


def test_headers_of_a_private_key_cost_no_more_than_one_pass() -> None:
    """Lines that may be headers, and that no key follows, are split in one way only."""
    text = "-----BEGIN PRIVATE KEY-----\n" + "Ab: " * 100_000
    assert DEFAULT.text(text) is text


@pytest.mark.parametrize("begin", ["-----BEGIN PRIVATE KEY-----\n", "sk-proj-", "Bearer ", "SessionToken="])
def test_a_secret_without_an_end_is_not_looked_at_whole_with_each_piece(begin: str) -> None:
    """Tens of thousands of pieces of one key, or of what looks like one, cost no more than a few passes."""
    stream = DEFAULT.stream()
    assert len("".join(map(stream.feed, [begin, *["Ab3d"] * 50_000]))) <= len(begin)
    assert stream.holding


@pytest.mark.parametrize("before", ["\x1b[32m", "\x1b[01;31m\x1b[K", "\\u001b[0;31m", "\\x1b[31m", "?q=key%3D", "%22"])
def test_a_key_in_color_or_in_a_url_is_masked(before: str) -> None:
    """The letters and digits that end an escape do not belong to the word behind it, whole or in pieces."""
    text = f"{before}ghp_{LONG}01234567 "
    stream = DEFAULT.stream()
    assert DEFAULT.text(text) == f"{before}ghp_[masked] " == "".join(map(stream.feed, text)) + stream.flush()


def test_a_key_that_was_assigned_inside_another_is_masked_too() -> None:
    """What goes on past the end of the key before it does not end with it."""
    assert DEFAULT.text(f"SessionToken={'a1B2' * 10}SessionToken: {'c3D4' * 10}") == ("SessionToken=[masked]: [masked]")
