"""The options that drivers share which do not stand on the kit yet: `read_options` takes their place."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from dutyfree.core.contract import Dispatch
from dutyfree.core.errors import Misuse
from dutyfree.core.keyword import check_names
from dutyfree.driver.offer import Profile

_CHOICES: Mapping[str, Sequence[str]] = {
    "dispatch": ("agent", "api"),
    "profile": ("default", "hardened"),
    "ready": ("poll", "wait"),
}


def check_options(options: Mapping[str, str], known: Sequence[str], driver: str) -> None:
    """`Misuse` for an option nobody knows, or a value it does not have."""
    check_names(options, known, driver=driver)
    for name, value in options.items():
        if value not in _CHOICES.get(name, (value,)):
            raise Misuse(f"must be {' or '.join(_CHOICES[name])}, not {value!r}", field=name, driver=driver)


def dispatch_of(options: Mapping[str, str]) -> Dispatch:
    """`agent` unless asked otherwise."""
    return cast("Dispatch", options.get("dispatch", "agent"))


def profile_of(options: Mapping[str, str]) -> Profile:
    """`default` unless asked otherwise."""
    return cast("Profile", options.get("profile", "default"))
