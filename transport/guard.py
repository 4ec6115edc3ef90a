"""Who may come in: bearer keys, origins and hosts. Keys are compared and hashed here, and go no further."""

import hashlib
import hmac
import ipaddress
from collections.abc import Mapping

from attrs import field, frozen

Headers = Mapping[str, str]
"""HTTP header fields by lower-case name; repeated fields joined with ", "."""


class Forbidden(Exception):
    """The request is refused before anything of it is read further.

    Attributes:
        status: 401 for a missing or wrong key, 403 for a page or a host that may not ask at all.
        code: machine-readable reason.
    """

    def __init__(self, message: str, *, status: int, code: str) -> None:
        super().__init__(message)
        self.status, self.code = status, code


def owner_of(key: str) -> str:
    """A label of ``key``, the same each time, that does not give the key away; "" for no key."""
    if not key:
        return ""
    return hashlib.blake2b(key.encode(), digest_size=16, person=b"turntape-owner").hexdigest()


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, can only be reached from this machine."""
    try:
        address = ipaddress.ip_address(host.strip("[]"))
        mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
        return (mapped or address).is_loopback
    except ValueError:
        return host.lower() == "localhost" or host.lower().endswith(".localhost")


@frozen
class Guard:
    """The rules of one server.

    Attributes:
        keys: who knows one of these may come in; none means everybody who can reach the port.
        allow_origins: web pages that may call, as their browsers name them ("https://app.example"), or "*".
        host: the name or address the server listens on; a browser may call it by this name.
    """

    keys: frozenset[str] = field(default=frozenset(), repr=False)
    allow_origins: frozenset[str] = frozenset()
    host: str = "127.0.0.1"

    def check_page(self, headers: Headers) -> str:
        """The web page's origin if one calls, else "".

        Any page can make its visitor's browser call a port on loopback, so a page must be on the list. Where
        no key is needed the host is checked too: a page whose own name was pointed at this machine sends no
        foreign origin with a GET, but it cannot help sending its name as ``Host``.

        Raises:
            Forbidden: 403.
        """
        origin = headers.get("origin", "")
        if origin and origin not in self.allow_origins and "*" not in self.allow_origins:
            raise Forbidden(
                f"Origin {origin[:200]!r} may not call this server; allow it in the server's configuration.",
                status=403,
                code="origin_not_allowed",
            )
        host = headers.get("host", "")
        if not self.keys and host and not self._is_ours(host):
            raise Forbidden(
                f"Host {host[:200]!r} is not this server's; call it by its address, or configure a key.",
                status=403,
                code="host_not_allowed",
            )
        return origin

    def check_key(self, headers: Headers) -> str:
        """The owner label of the key in ``Authorization: Bearer`` or ``api-key``.

        Raises:
            Forbidden: 401, a key is needed and none, or no good one, was sent.
        """
        scheme, _, key = headers.get("authorization", "").partition(" ")
        key = key.strip() if scheme.lower() == "bearer" else headers.get("api-key", "").strip()
        if self.keys:
            presented = key.encode()
            # every key is compared in full, so that the time taken says nothing about any of them
            matches = [hmac.compare_digest(presented, known.encode()) for known in self.keys]
            if not any(matches):
                what = "Incorrect API key provided." if key else "No API key provided."
                raise Forbidden(
                    f"{what} Send one of this server's keys as 'Authorization: Bearer KEY'.",
                    status=401,
                    code="invalid_api_key",
                )
        return owner_of(key)

    def _is_ours(self, host: str) -> bool:
        name = host.rpartition(":")[0] if host.rpartition(":")[2].isdigit() and not host.endswith("]") else host
        name = name.strip("[]").lower()
        if name in ("localhost", self.host.lower()) or name.endswith(".localhost"):
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True
