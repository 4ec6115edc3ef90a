"""Who may come in."""

import pytest

from turntape.transport.guard import Forbidden, Guard, is_loopback, owner_of

OPEN = Guard()
KEYED = Guard(keys=frozenset({"sk-one", "sk-two"}), allow_origins=frozenset({"https://app.example"}))


def refused(check, headers):
    with pytest.raises(Forbidden) as caught:
        check(headers)
    return caught.value.status, caught.value.code


@pytest.mark.parametrize(
    "headers", [{"authorization": "Bearer sk-two"}, {"authorization": "bearer sk-two"}, {"api-key": "sk-two"}]
)
def test_a_good_key_gives_its_owner(headers):
    """Either header names a key, and the owner is a label of that key that does not show it."""
    owner = KEYED.check_key(headers)
    assert owner == owner_of("sk-two") != owner_of("sk-one")
    assert "two" not in owner and len(owner) == 32


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"authorization": "Bearer sk-three"},
        {"authorization": "sk-one"},
        {"api-key": ""},
        {"authorization": "Bearer sk-onë"},
    ],
)
def test_no_good_key_is_401(headers):
    """A missing, wrong or malformed key is refused, and the refusal never repeats it."""
    assert refused(KEYED.check_key, headers) == (401, "invalid_api_key")
    with pytest.raises(Forbidden) as caught:
        KEYED.check_key(headers)
    assert "three" not in str(caught.value)


def test_without_keys_everybody_is_somebody():
    """Where no key is needed, none is nobody's; one that is sent anyway keeps its owner's responses apart."""
    assert OPEN.check_key({}) == ""
    assert OPEN.check_key({"authorization": "Bearer x"}) == owner_of("x") != ""


def test_pages_need_to_be_on_the_list():
    """A request with an Origin is a web page's: only listed ones may call, and "*" lists all."""
    assert KEYED.check_page({"origin": "https://app.example"}) == "https://app.example"
    assert refused(KEYED.check_page, {"origin": "https://evil.example"}) == (403, "origin_not_allowed")
    assert refused(OPEN.check_page, {"origin": "null", "host": "localhost"}) == (403, "origin_not_allowed")
    assert Guard(allow_origins=frozenset({"*"})).check_page({"origin": "https://any.example"})
    assert OPEN.check_page({"host": "127.0.0.1:8080"}) == ""


@pytest.mark.parametrize(
    "host",
    ["localhost", "LOCALHOST:80", "127.0.0.1:8080", "[::1]:8080", "[::1]", "10.1.2.3", "app.localhost", "me.lan:80"],
)
def test_hosts_that_are_ours(host):
    """Without keys, an address, a localhost name and the configured name are ours."""
    assert Guard(host="me.lan").check_page({"host": host}) == ""


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "localhost.evil.example", "127.0.0.1.evil.example"]
)
def test_a_rebound_name_is_403(host):
    """Without keys, a page that points its own name at this machine is found out by that name; with keys it has none."""
    assert refused(OPEN.check_page, {"host": host}) == (403, "host_not_allowed")
    assert KEYED.check_page({"host": host}) == ""


def test_loopback():
    """Loopback is what other machines cannot reach."""
    assert all(map(is_loopback, ["127.0.0.1", "127.9.9.9", "::1", "localhost", "LocalHost"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "", "10.0.0.1", "example.com"]))


def test_keys_are_not_shown():
    """A printed guard holds no key."""
    assert "sk-" not in repr(KEYED)
