"""`Egress`: which hosts and ports a sandbox may reach, and whether an address is one of them.

Decides only; resolving names and connecting is done where the proxy is. Addresses of private, link-local, loopback
and other special ranges (cloud metadata among them) are never reached because a name leads there: they must be named
themselves.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from dutyfree.core.errors import Misuse
from dutyfree.core.keyword import named_options

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
_Range = ipaddress.IPv4Network | ipaddress.IPv6Network

_NAME = re.compile(r"(?:\*\.)?(?:[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?\.)*[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?")
_SPECIAL: tuple[_Range, ...] = tuple(
    map(
        ipaddress.ip_network,
        (
            "0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "168.63.129.16/32", "169.254.0.0/16", "172.16.0.0/12",
            "192.0.0.0/24", "192.0.2.0/24", "192.31.196.0/24", "192.52.193.0/24", "192.88.99.0/24", "192.168.0.0/16",
            "192.175.48.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "224.0.0.0/3",
            "::/3", "2001::/23", "2001:db8::/32", "2002::/16", "2620:4f:8000::/48", "3ffe::/16", "3fff::/20", "4000::/2", "8000::/1",
        ),
    )
)  # fmt: skip
"""IANA's special-purpose registries, and Azure's wire server among ordinary addresses. Spelled out, since what
`ipaddress` calls global differs between versions of Python. Of IPv6, 2000::/3 is all that is in ordinary use: what lies
beyond it (loopback, ULA, link-local, site-local, SRv6, NAT64, IPv4 in disguise) is special."""

_LOOPBACK = ipaddress.IPv4Network("127.0.0.1")


@dataclass(frozen=True, slots=True)
class _Rule:
    name: str | None
    """Lower case; ``*.x`` for everything below x."""
    range: _Range | None
    port: int | None
    """None: every port."""


@named_options
@dataclass(frozen=True, kw_only=True, slots=True)
class Egress:
    """An allow-list: ``example.org:443``, ``*.example.net:443``, ``10.0.0.5:8080``, ``10.1.0.0/16:443``, ``[fd00::5]:80``.

    A name is resolved outside, once per connection, and the connection goes to the very address that was checked.
    """

    allow: Sequence[str]

    def __post_init__(self) -> None:
        if isinstance(self.allow, str | bytes) or not isinstance(self.allow, Sequence):
            raise Misuse(f"must be a list of host:port, not {type(self.allow).__name__}", field="network.allow")
        for one in self.allow:
            if not isinstance(one, str):
                raise Misuse(f"must hold host:port, not {type(one).__name__}", field="network.allow")
        object.__setattr__(self, "allow", tuple(self.allow))
        _parsed(self.allow)  # raises for what is none

    @property
    def _rules(self) -> tuple[_Rule, ...]:
        return _parsed(self.allow)

    @property
    def loopback_ports(self) -> tuple[int, ...]:
        """The ports of 127.0.0.1 that are named one by one."""
        return tuple(
            dict.fromkeys(rule.port for rule in self._rules if rule.range == _LOOPBACK and rule.port is not None)
        )

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
    if "%" in text:  # a scope, as in fe80::1%eth0, would choose an interface of the host
        return None
    try:
        return ipaddress.ip_address(text.removeprefix("[").removesuffix("]"))
    except ValueError:
        return None


def unmapped(address: Address) -> Address:
    """The IPv4 address in ``::ffff:a.b.c.d``; any other as it is."""
    return (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address


def special(address: Address) -> bool:
    """Say whether an address is special, and not an ordinary one of the internet."""
    # ISATAP puts an IPv4 address below any prefix, for a tunnel of the host to unpack.
    isatap = isinstance(address, ipaddress.IPv6Address) and int(address) >> 32 & 0xFCFFFFFF == 0x5EFE
    return isatap or any(address in range_ for range_ in _SPECIAL)


def _covers_special(range_: _Range, address: Address) -> bool:
    """Say whether a special range allows it: 0.0.0.0/0 says nothing about the metadata service."""
    if address not in range_ or range_.prefixlen < 8:
        return False
    return range_.num_addresses == 1 or any(_within(range_, special_) for special_ in _SPECIAL)


def _within(range_: _Range, other: _Range) -> bool:
    return range_.version == other.version and range_.network_address in other and range_.prefixlen >= other.prefixlen


def _matches(rule: str, name: str) -> bool:
    return name.endswith(rule[1:]) and len(name) > len(rule) - 1 if rule.startswith("*.") else name == rule


@lru_cache(maxsize=256)
def _parsed(allow: Sequence[str]) -> tuple[_Rule, ...]:
    return tuple(map(_parse, allow))


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
