"""`Record`: what one trial left behind, as one flat JSON object. The schema is in docs/reference/records.md.

Owns the field names and their types; refuses lines that do not have them.
"""

from __future__ import annotations

import json
from dataclasses import MISSING, asdict, dataclass, field, fields
from typing import Any, Literal

SCHEMA = 1

Profile = Literal["controlled", "optimised"]
"""controlled: a fresh sandbox and the whole set-up for each trial · optimised: whatever the substrate offers to avoid
that (fork, reset)."""

Start = Literal["fresh", "fork", "reset"]
"""How the trial came by its sandbox."""

COMPONENTS = ("create", "ready", "setup", "dispatch", "run", "orchestration", "reset", "destroy")
"""What a total is made of, in the order in which it is paid."""


class BadRecord(ValueError):
    """A line that is not a record of this schema."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """One trial. Times are monotonic nanoseconds; the components sum to `total_ns`."""

    schema: int = SCHEMA
    id: str
    """`substrate/tier/steps/pN/block.member`, unique in a run."""
    host: str
    """Fingerprint of the machine; the whole of it is in the manifest."""
    substrate: str
    version: str
    dispatch: str
    tier: str
    steps: int
    """0: a cold start."""
    parallel: int
    """Trials of the same cell that were in flight together."""
    block: int
    order: int
    """Position in the run, counting from 0; resumed runs keep counting."""
    warmup: bool
    profile: str
    start: str
    seed: int
    image: str
    cache: str
    """State of the file caches: `warm` (after warm-up trials) or `unknown`."""
    started_at: str
    """UTC, ISO 8601; for people."""
    ok: bool
    failure_kind: str | None = None
    failure_message: str | None = None
    failure_action: int | None = None
    """Index of the action it failed at; None: outside of the actions."""
    total_ns: int
    """steps > 0: request to destroyed or reset · steps = 0: request to the end of set-up."""
    create_ns: int
    ready_ns: int
    setup_ns: int
    dispatch_ns: int
    run_ns: int
    orchestration_ns: int
    """What is left of the total: queueing and control plane, and this instrument."""
    reset_ns: int
    destroy_ns: int
    first_result_ns: int | None
    """Request to the first command's result in hand: the cold start proper."""
    teardown_ns: int
    """Destroying the sandbox, whether or not the total includes it."""
    actions_ns: list[int]
    """Each action, call to result."""
    actions_run_ns: list[int]
    """Each action's own time inside."""
    steal_ns: int
    """Processor time the hypervisor gave to others meanwhile, all cores together."""
    exit_codes: list[int] = field(default_factory=list)
    """Exit code of each action as shells tell it: 128 + signal, 124 at a deadline, 137 where memory ran out."""
    cpu_ns: int = 0
    """Processor time of the actions' processes; 0 where the substrate cannot tell."""
    preload_ns: int = 0
    """Bringing in a state that the tier takes as given; in no other time."""
    think_ns: int = 0
    """Pauses before actions, as a model makes them; in no other time."""
    machine_cpu_ns: int | None = None
    """Processor time of the whole machine during the cohort, less its noise before the run, over its trials."""
    live_bytes: int | None = None
    """Memory of the whole machine that each trial of the cohort took; None where it was not watched."""
    settled_ns: int = 0
    """Waiting before the trial until the machine was quiet."""

    def to_json(self) -> str:
        """One line, without its end."""
        return json.dumps(asdict(self), separators=(",", ":"))


_TYPES: dict[str, tuple[type, ...]] = {
    "int": (int,),
    "str": (str,),
    "bool": (bool,),
    "str | None": (str, type(None)),
    "int | None": (int, type(None)),
    "list[int]": (list,),
}
_FIELDS = {one.name: _TYPES[str(one.type)] for one in fields(Record)}
_REQUIRED = frozenset(
    one.name for one in fields(Record) if one.default is MISSING and one.default_factory is MISSING
) | {"schema"}
"""Fields with a default came later, or hold only for failures: lines without them are read."""


def parse(line: str) -> Record:
    """A record from its line; extra keys are ignored, anything else that differs is `BadRecord`."""
    try:
        data: Any = json.loads(line)
    except ValueError as error:
        raise BadRecord(f"not JSON: {error}") from error
    if not isinstance(data, dict):
        raise BadRecord(f"not an object but {type(data).__name__}")
    if data.get("schema") != SCHEMA:
        raise BadRecord(f"schema {data.get('schema')!r}; this version reads {SCHEMA}")
    if missing := sorted(_REQUIRED - data.keys()):
        raise BadRecord(f"lacks {', '.join(missing)}")
    values = {name: data[name] for name in _FIELDS if name in data}
    for name, value in values.items():
        if not isinstance(value, _FIELDS[name]) or (isinstance(value, bool) and bool not in _FIELDS[name]):
            raise BadRecord(f"{name} is {value!r}")
    return Record(**values)
