"""Request for a sandbox: `Spec` and its `Limits`.

Values only. Everything wrong that can be seen without a substrate is refused here, as `Misuse` naming the field; what
only the substrate can know (does the image exist?) is refused by it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath
from typing import Any, Literal, Protocol

from dutyfree.core.egress import Egress
from dutyfree.core.errors import Misuse
from dutyfree.core.frozen import FrozenDict
from dutyfree.core.keyword import named_options

Network = Literal["none", "host"]
"""none: loopback only · host: the machine's own network, no isolation at all."""

Isolation = Literal["none", "namespace", "kernel", "vm"]
"""What stands between the code and the machine, weakest first. none: nothing · namespace: the host kernel's own
namespaces and filters · kernel: a second kernel in user space (gVisor) · vm: hardware virtualisation."""

Storage = Literal["memory", "disk"]
"""Where a sandbox's writes go. memory: fastest, counted in `memory_bytes` too · disk: for large working sets."""

Inside = str | PurePath
"""An absolute path inside a sandbox."""

User = str | int
"""The user that actions run as: a name, a uid, or `user:group`, as known inside."""

ISOLATION_ORDER: tuple[Isolation, ...] = ("none", "namespace", "kernel", "vm")

Content = bytes | bytearray | memoryview | str
"""What a command reads or a file shall hold; text is sent as UTF-8."""

_MAX_BYTES = 1 << 50
_MAX_PIDS = 1 << 22
_MAX_SECONDS = 365 * 86_400.0


@named_options
@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Upper bounds on what a sandbox may use. None: the substrate's own default.

    A limit that is given is enforced or refused (`Unsupported`), never ignored.
    """

    cpus: float | None = None
    """Processor time per second of wall time; 0.5 is half a core."""
    memory_bytes: int | None = None
    """All memory of all processes, page cache and memory-backed files included."""
    pids: int | None = None
    """Processes and threads alive at once."""
    disk_bytes: int | None = None
    """Bytes that may be written, over what the image holds. Where files are in memory: by default less than that, so
    that who writes too much is told and not killed."""
    files: int | None = None
    """Files, directories and links that may be created (inodes)."""

    def __post_init__(self) -> None:
        if self.cpus is not None:
            _check_number("limits.cpus", self.cpus, low=0.01, high=4096)
        _check_count("limits.memory_bytes", self.memory_bytes, low=4 << 20, high=_MAX_BYTES)
        _check_count("limits.pids", self.pids, low=2, high=_MAX_PIDS)
        _check_count("limits.disk_bytes", self.disk_bytes, low=64 << 10, high=_MAX_BYTES)
        _check_count("limits.files", self.files, low=16, high=1 << 40)

    def given(self) -> dict[str, float | int]:
        """The limits the caller set, by name."""
        names = ("cpus", "memory_bytes", "pids", "disk_bytes", "files")
        return {name: value for name in names if (value := getattr(self, name)) is not None}


class Starts(Protocol):
    """Defaults that an image gives to the actions in its sandboxes."""

    @property
    def env(self) -> Mapping[str, str]:
        """Variables."""
        ...

    @property
    def cwd(self) -> str | None:
        """Working directory."""
        ...

    @property
    def user(self) -> str | None:
        """The user that actions run as."""
        ...


class Stage:
    """One step of the chain that leads from an image to a start state; the kinds there are stand in `core.stage`."""

    __slots__ = ()


@named_options
@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """Request for one sandbox."""

    image: str = "host"
    """A name the substrate knows, or the path of a rootfs directory or tar. `host`: this machine's own programs."""
    limits: Limits = field(default_factory=Limits)
    network: Network | Egress | None = None
    """Or an `Egress`: the hosts and ports that may be reached, through a proxy. None: the strictest that the substrate
    offers; `Sandbox.network` says which."""
    env: Mapping[str, str] = field(default_factory=dict)
    """Added to the sandbox's own small environment, for every action."""
    cwd: str | None = None
    """Where actions start; None: the image's own, else the home directory."""
    user: str | None = None
    """The user that actions run as: a name, a uid, or `user:group`, as known inside. None: the image's, else root."""
    lifetime_s: float | None = None
    """The sandbox is destroyed this long after its creation, whatever it is doing."""
    idle_s: float | None = None
    """The sandbox is destroyed when nothing has been asked of it, and nothing has run, for this long."""
    isolation: Isolation | None = None
    """The weakest isolation the caller accepts; None: whatever the substrate offers."""
    storage: Storage = "memory"
    stages: tuple[Stage, ...] = ()
    """What is done to the image before the sandbox is handed out, in this order; built once and kept. By `warm:X`."""

    def __post_init__(self) -> None:
        check_text("image", self.image)
        object.__setattr__(self, "stages", _check_stages(self.stages))
        if not isinstance(self.limits, Limits):
            raise Misuse(f"must be a Limits, not {type(self.limits).__name__}", field="limits")
        if self.network is not None and not isinstance(self.network, Egress):
            _check_choice("network", self.network, ("none", "host"))
        _check_choice("storage", self.storage, ("memory", "disk"))
        if self.isolation is not None:
            _check_choice("isolation", self.isolation, ISOLATION_ORDER)
        object.__setattr__(self, "env", FrozenDict(check_env("env", self.env)))
        if self.cwd is not None:
            object.__setattr__(self, "cwd", check_path("cwd", self.cwd))
        if self.user is not None:
            object.__setattr__(self, "user", check_user("user", self.user))
        for name in ("lifetime_s", "idle_s"):
            value = getattr(self, name)
            if value is not None:
                _check_number(name, value, low=0.001, high=_MAX_SECONDS)

    def over(self, image: Starts) -> dict[str, Any]:
        """The `env`, `cwd` and `user` that actions start with: this spec's own where it names them, else the image's."""
        return {"env": {**image.env, **self.env}, "cwd": self.cwd or image.cwd, "user": self.user or image.user}


def check_spec(spec: object, unknown: Iterable[str] = ()) -> None:
    """`Misuse` for what is no `Spec`, and for the fields of one that were given as options."""
    fields = ", ".join(f"{name}=…" for name in unknown)
    if fields or not isinstance(spec, Spec | None):
        raise Misuse(f"create() takes a Spec: create(Spec({fields or '…'}))", field="spec")


def check_text(name: str, value: object) -> str:
    """A non-empty string without NUL, or `Misuse`."""
    if not isinstance(value, str):
        raise Misuse(f"must be a string, not {type(value).__name__}", field=name)
    if not value:
        raise Misuse("must not be empty", field=name)
    if "\0" in value:
        raise Misuse("contains a NUL character", field=name)
    return value


def check_path(name: str, value: object) -> str:
    """An absolute path inside the sandbox, or `Misuse`. Names that are not UTF-8 come as surrogate escapes."""
    path = check_text(name, str(value) if isinstance(value, PurePath) else value)
    if not path.startswith("/"):
        raise Misuse(f"must be an absolute path inside the sandbox, not {path!r}", field=name)
    if len(path) >= 4096:
        raise Misuse(f"is {len(path)} characters long; paths end at 4095", field=name)
    return path


def check_user(name: str, value: object) -> str:
    """A user's name, a uid or `user:group`, or `Misuse`."""
    if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
        return str(value)
    return check_text(name, value)


def check_env(name: str, value: object) -> dict[str, str]:
    """A mapping of names to strings that an environment can hold, or `Misuse`."""
    if not isinstance(value, Mapping):
        raise Misuse(f"must be a mapping, not {type(value).__name__}", field=name)
    for key, text in value.items():
        if not isinstance(key, str) or not key or "=" in key or "\0" in key:
            raise Misuse(f"{key!r} is not a variable's name", field=name)
        if not isinstance(text, str) or "\0" in text:
            raise Misuse(f"the value of {key!r} is not a string without NUL", field=name)
    return dict(value)


def _check_stages(value: object) -> tuple[Stage, ...]:
    if not isinstance(value, tuple | list) or not all(isinstance(one, Stage) for one in value):
        raise Misuse("must be a tuple of stages: Files, Repository or Commands", field="stages")
    return tuple(value)


def check_timeout(name: str, value: object) -> float | None:
    """None (no deadline) or a positive number of seconds, or `Misuse`."""
    if value is None:
        return None
    return _check_number(name, value, low=1e-6, high=_MAX_SECONDS)


def _check_number(name: str, value: object, *, low: float, high: float) -> float:
    if (
        isinstance(value, bool)
        or not isinstance(value, int | float)
        or (isinstance(value, float) and math.isnan(value))
    ):
        raise Misuse(f"must be a number, not {value!r}", field=name)
    if not low <= value <= high:
        raise Misuse(f"must be between {low:g} and {high:g}, not {value!r}", field=name)
    return float(value)


def _check_count(name: str, value: object, *, low: int, high: int) -> None:
    if value is None:
        return
    if isinstance(value, bool) or not isinstance(value, int):
        raise Misuse(f"must be a whole number, not {value!r}", field=name)
    if not low <= value <= high:
        raise Misuse(f"must be between {low} and {high}, not {value}", field=name)


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise Misuse(f"must be one of {', '.join(choices)}, not {value!r}", field=name)
