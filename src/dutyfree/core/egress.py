"""`Egress`: which hosts and ports a sandbox may reach, and whether an address is one of them.

Decides only; resolving names and connecting is done where the proxy is. Addresses of private, link-local, loopback and
other special ranges (cloud metadata among them) are never reached because a name leads there: they must be named themselves.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from dutyfree.core.errors import Misuse

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Range = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAME = re.compile(r"(?:\*\.)?(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_EMBEDDING = tuple(map(ipaddress.IPv6Network, ("64:ff9b::/96", "64:ff9b:1::/48", "2002::/16", "2001::/32", "::/96")))
"""Ranges whose addresses stand for an IPv4 address that a gateway may unpack: as special as can be."""


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str | None
    """Lower case; ``*.x`` for everything below x."""
    range: _Range | None
    port: int | None
    """None: every port."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Egress:
    """An allow-list: ``example.org:443``, ``*.example.net:443``, ``10.0.0.5:8080``, ``10.1.0.0/16:443``, ``[fd00::5]:80``.

    A name is resolved outside, once per connection, and the connection goes to the very address that was checked.
    """

    allow: Sequence[str]
    _rules: tuple[_Rule, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if isinstance(self.allow, str | bytes) or not isinstance(self.allow, Sequence):
            raise Misuse(f"must be a list of host:port, not {type(self.allow).__name__}", field="network.allow")
        object.__setattr__(self, "allow", tuple(self.allow))
        object.__setattr__(self, "_rules", tuple(map(_parse, self.allow)))

    def allows_name(self, name: str, port: int) -> bool:
        """The name may be resolved for this port. It must be as `host_name` gives it."""
        return any(
            rule.name is not None and _matches(rule.name, name) and rule.port in (None, port) for rule in self._rules
        )

    def allows_address(self, address: Address, port: int, *, named: bool) -> bool:
        """The address may be connected to; `named`: an allowed name led to it, so an ordinary address needs no rule."""
        address = unmapped(address)
        if special(address):
            return any(
                rule.range is not None and _covers_special(rule.range, address) and rule.port in (None, port)
                for rule in self._rules
            )
        return named or any(
            rule.range is not None and address in rule.range and rule.port in (None, port) for rule in self._rules
        )


def host_name(text: str) -> str | None:
    """A host's name as rules have it: lower case, no dot at the end; None if it is none."""
    name = text.lower().removesuffix(".")
    return name if len(name) <= 253 and not name.startswith("*") and _NAME.fullmatch(name) else None


def literal(text: str) -> Address | None:
    """The address that a text says, in the usual notation only; None: it is not one."""
    try:
        return ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def unmapped(address: Address) -> Address:
    """The IPv4 address in ``::ffff:a.b.c.d``; any other as it is."""
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def special(address: Address) -> bool:
    """Not an ordinary address of the internet."""
    if isinstance(address, ipaddress.IPv6Address) and any(address in embedding for embedding in _EMBEDDING):
        return True
    return not address.is_global or address.is_multicast


def _covers_special(range_: _Range, address: Address) -> bool:
    """By a range that is itself special: 0.0.0.0/0 says nothing about the metadata service."""
    return (
        address in range_
        and special(range_.network_address)
        and special(range_.broadcast_address)
        and range_.prefixlen >= 8
    )


def _matches(rule: str, name: str) -> bool:
    return name.endswith(rule[1:]) and len(name) > len(rule) - 1 if rule.startswith("*.") else name == rule


def _parse(entry: object) -> _Rule:
    host, colon, port = entry.rpartition(":") if isinstance(entry, str) else ("", "", "")
    if (
        not colon
        or not host
        or not (port == "*" or (port.isascii() and port.isdecimal() and 0 < int(port[:6]) < 65_536))
    ):
        raise Misuse(f"{entry!r} is not host:port", field="network.allow")
    number = None if port == "*" else int(port)
    try:
        return _Rule(None, ipaddress.ip_network(host.removeprefix("[").removesuffix("]")), number)
    except ValueError:
        pass
    name = host.lower().removesuffix(".")
    if "/" in host or not _NAME.fullmatch(name) or name.rpartition(".")[2].isdecimal():
        raise Misuse(f"{host!r} is neither a name, an address nor a range", field="network.allow")
    return _Rule(name, None, number)
