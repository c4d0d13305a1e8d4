"""`Subject`: a substrate under measurement, and what it turned out to offer to each tier.

`examine` looks before anything is timed: which image the substrate knows, whether the programs are there, how a clone
would come by its repository. What is missing makes a tier "not offered", with the reason, and not a row of failures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from dutyfree.core.contract import Capabilities, Sandbox, Substrate
from dutyfree.core.errors import DutyfreeError, Misuse, Unsupported
from dutyfree.core.spec import Limits, Network, Spec, Storage
from dutyfree.core.timeline import now_ns
from dutyfree.meter.fingerprint import written_bytes
from dutyfree.meter.workload import SAME_ENV, Route, Workload

PROBE_BYTES = 8 << 20

IMAGES = ("host", "bench")
"""Tried in this order: the machine's own programs are the same bytes that the host reference runs."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Subject:
    """One substrate, under the names it has in records."""

    label: str
    """Unique in a run: the name as it was asked for, options included."""
    name: str
    """Name in results, beside `dispatch`."""
    substrate: Substrate
    hollow: bool = False
    """True if it answers without doing anything: answers are checked, for the cost of checking, but not judged."""

    @property
    def dispatch(self) -> str:
        """The way of actions to it."""
        return self.substrate.capabilities.dispatch


@dataclass(frozen=True, kw_only=True, slots=True)
class Offer:
    """A subject's offer to a tier."""

    offered: bool
    reason: str
    """Why not; or how."""
    spec: Spec | None = None
    software: Mapping[str, str] | None = None
    """What the programs inside say of themselves."""
    image_bytes: int | None = None
    """Size of the image's files, as the store or the engine has it; None for the machine's own programs."""
    storage_seen: Storage | None = None
    """Medium that writes inside really reached; None: not seen, as on another machine."""
    first_answer_s: float | None = None
    """Seconds from the request to the first answer, when the substrate was looked at."""
    route: Route | None = None
    """How set-up comes by the repository that it clones, if it does."""

    def to_dict(self) -> dict[str, Any]:
        """Describe the subject for the manifest."""
        spec = self.spec
        return {
            "offered": self.offered,
            "reason": self.reason,
            "image": spec.image if spec else None,
            "stages": len(spec.stages) if spec else 0,
            "network": spec.network if spec else None,
            "storage": spec.storage if spec else None,
            "storage_seen": self.storage_seen,
            "limits": spec.limits.given() if spec else {},
            "software": dict(self.software or {}),
            "image_bytes": self.image_bytes,
            "route": self.route,
        }


async def examine(
    subject: Subject,
    workload: Workload,
    *,
    images: Sequence[str] = IMAGES,
    limits: Limits | None = None,
    storage: Storage = "memory",
    server: tuple[str, int] | None = None,
) -> Offer:
    """Find out, in one throw-away sandbox, whether and how the subject can run the workload."""
    capabilities = subject.substrate.capabilities
    if absent := [name for name in workload.needs if not getattr(capabilities, name)]:
        return Offer(offered=False, reason="; ".join(_absence(capabilities, name) for name in absent))
    network = _network(capabilities, clones=workload.clone is not None)
    refusals: list[str] = []
    for image in images:
        spec = Spec(
            image=image,
            env={**SAME_ENV, **workload.env},
            stages=workload.stages,
            network=network,
            limits=_enforced(capabilities, limits or Limits()),
            storage=_storage(capabilities, storage),
        )
        try:
            asked_ns = now_ns()
            async with subject.substrate.create(spec) as box:
                await box.run(["true"])
                first_answer_s = (now_ns() - asked_ns) / 1e9
                missing, software = await _look(box, workload)
                missing += await _absent_directory(box, workload)
                route = await _route(box, workload, server)
                seen = None if subject.hollow else await seen_storage(box)
            size = None if image == "host" else await subject.substrate.image_bytes(image)
        except (Misuse, Unsupported) as error:
            refusals.append(str(error))
            continue
        except DutyfreeError as error:
            return Offer(offered=False, reason=str(error))
        if missing and not subject.hollow:
            refusals.append(f"image {image} lacks {', '.join(missing)}")
            continue
        return Offer(
            offered=True, reason=f"image {image}, network {network}, storage {spec.storage}", spec=spec,
            software=software, image_bytes=size, storage_seen=seen, first_answer_s=first_answer_s, route=route,
        )  # fmt: skip
    return Offer(offered=False, reason="; ".join(refusals))


async def _route(box: Sandbox, workload: Workload, server: tuple[str, int] | None) -> Route | None:
    """The way to the git server. That of a `host` network is tried: a vendor's is not this machine's."""
    if workload.clone is None:
        return None
    if server is None:
        return "upload"
    if box.spec.network == "none":
        return "relay" if box.capabilities.forward else "upload"
    host, port = server
    asked = await box.run(["git", "ls-remote", f"git://{host}:{port}/{workload.clone.name}"], timeout_s=10)
    return "network" if asked.ok else "upload"


def _absence(capabilities: Capabilities, ability: str) -> str:
    note = capabilities.notes.get(ability)
    return f"{ability} is not offered{': ' + note if note else ''}"


def _network(capabilities: Capabilities, *, clones: bool) -> Network:
    """No network where that is offered (and can be relayed into, if need be), else the machine's own."""
    relays = capabilities.forward or not clones
    return "host" if "host" in capabilities.networks and not (relays and "none" in capabilities.networks) else "none"


def _enforced(capabilities: Capabilities, limits: Limits) -> Limits:
    """Those of the limits that the substrate enforces; the manifest shows what is left."""
    return Limits(**{k: v if k in capabilities.limits else None for k, v in asdict(limits).items()})


def _storage(capabilities: Capabilities, asked: Storage) -> Storage:
    """The storage that a sandbox will have: the manifest tells what is given, and not what was asked for."""
    if capabilities.medium is not None:
        return capabilities.medium
    return asked if asked in capabilities.storages else min(capabilities.storages, default=asked)


async def seen_storage(box: Sandbox) -> Storage | None:
    """The medium that a write inside reaches: a declaration may be wrong, the kernel's counters are not.

    The kernel accounts pages to the process that wrote them where a device is below the file system, and none where there
    is only memory. A kernel of its own inside may not count: then the machine's devices are looked at, and since others
    may write meanwhile, one try of three without them shows memory.
    """
    script = f"printf '%{PROBE_BYTES}s' x > .medium && cat /proc/$$/io; sync .medium; rm -f .medium"
    for _ in range(3):
        before = written_bytes()
        out = await box.run(script)
        if before is None or not out.ok:
            return None
        counted = dict(line.split(": ") for line in out.text().splitlines() if ": " in line)
        if int(counted.get("wchar", "0")) >= PROBE_BYTES:
            return "disk" if int(counted.get("write_bytes", "0")) >= PROBE_BYTES // 2 else "memory"
        if (written_bytes() or 0) - before < PROBE_BYTES // 2:
            return "memory"
    return "disk"


async def _absent_directory(box: Sandbox, workload: Workload) -> list[str]:
    """The directory of a recording, where nothing is uploaded that would make it."""
    where = workload.surroundings
    if where is None or where.cwd is None or where.repository is not None:
        return []
    found = await box.run(["test", "-d", where.cwd])
    return [] if found.ok else [f"the recording's directory {where.cwd} (--trace-repo DIR uploads one)"]


async def _look(box: Sandbox, workload: Workload) -> tuple[list[str], dict[str, str]]:
    missing: list[str] = []
    software: dict[str, str] = {}
    for program in ("bash", *workload.programs):
        out = await box.run([program, "--version"])
        if out.ok:
            software[program] = (out.stdout or out.stderr).decode(errors="replace").partition("\n")[0]
        else:
            missing.append(program)
    return [program for program in missing if program in workload.programs], software
