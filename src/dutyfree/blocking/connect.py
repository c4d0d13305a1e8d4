"""Connect for callers without an event loop, and put two of its parts together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, Unpack, cast, overload

from dutyfree.blocking.bridge import Bridge
from dutyfree.blocking.mirror import Sandbox, Substrate, awaited
from dutyfree.connection import EngineOptions, NativeOptions, Option, Pooled, WarmOptions
from dutyfree.core import contract
from dutyfree.core.pending import Pending
from dutyfree.core.spec import Spec
from dutyfree.reward.verify import Check, Verification
from dutyfree.reward.verify import verify as verify_async

if TYPE_CHECKING:
    from dutyfree import warm
    from dutyfree.blocking.pool import Pool


@overload
def connect(name: Literal["native"], **options: Unpack[NativeOptions]) -> Substrate: ...
@overload
def connect(name: Literal["docker", "podman"], **options: Unpack[EngineOptions]) -> Substrate: ...
@overload
def connect(name: Pooled, **options: Unpack[WarmOptions]) -> Pool: ...
@overload
def connect(name: str | None = None, **options: Option) -> Substrate: ...
def connect(name: str | None = None, **options: Any) -> Substrate:
    """A substrate by its name, or the default one, on a loop of its own: close it, or use it as a block."""
    from dutyfree.substrates.registry import connect as connect_async  # noqa: PLC0415 - keeps importing cheap

    return opened(connect_async(name, **options))


def opened(pending: Pending[contract.Substrate]) -> Substrate:
    """Wait for a pending substrate on an event loop of its own."""
    bridge = Bridge()
    try:
        substrate = bridge.call(awaited(pending))
        if substrate.name.startswith("warm:"):
            from dutyfree.blocking.pool import Pool  # noqa: PLC0415 - only who has a pool needs its module

            return Pool(bridge, substrate)
        return Substrate(bridge, substrate)
    except BaseException:
        bridge.close()
        raise


def verify(
    substrate: Substrate,
    spec: Spec,
    box: Sandbox,
    *,
    allow: Sequence[str],
    checks: Sequence[Check],
    hidden: Mapping[str, bytes] | None = None,
    max_files: int = 10_000,
    max_bytes: int = 64 << 20,
) -> Verification:
    """Judge what an agent did in `box`, in a sandbox that it never touched. See `dutyfree.verify`."""
    return substrate._bridge.call(  # noqa: SLF001 - this module's own
        verify_async(
            substrate._substrate,  # noqa: SLF001
            spec,
            box._sandbox,  # noqa: SLF001
            allow=allow,
            checks=checks,
            hidden=hidden,
            max_files=max_files,
            max_bytes=max_bytes,
        )
    )


def open_pool(
    substrate: str | Substrate, *, targets: Sequence[tuple[Spec, int]] = (), settings: warm.Settings | None = None
) -> Pool:
    """A pool over a substrate, by its name or connected already. The pool closes what it is over."""
    from dutyfree import warm  # noqa: PLC0415 - only who has a pool needs its modules
    from dutyfree.blocking.pool import Pool  # noqa: PLC0415 - as above

    if isinstance(substrate, str):
        made = opened(warm.open_pool(substrate, targets=targets, settings=settings))  # type: ignore[arg-type]
        return cast("Pool", made)
    bridge = substrate._bridge  # noqa: SLF001 - the mirror of another class
    beneath = substrate._substrate  # noqa: SLF001
    return Pool(bridge, bridge.call(awaited(warm.open_pool(beneath, targets=targets, settings=settings))))
