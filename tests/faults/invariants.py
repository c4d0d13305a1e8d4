"""The twelve invariants of a run with faults, each with the check that holds it after `faulty.py`.

`broken(seen)` names those that do not hold. What is checked elsewhere too is in docs/concepts/invariants.md.
"""

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from family import marked, survivors, watch

import dutyfree

ENDINGS = {"exit", "signal", "timeout", "oom", "output-limit", "cancelled"}
STATES = ENDINGS | {"sandbox-died", "lost"}
MEMORY_BYTES, PIDS = 96 << 20, 64
SPEC = {"limits": dutyfree.Limits(memory_bytes=MEMORY_BYTES, pids=PIDS)}
AGENT = 1
"""The agent counts as a process too."""
HELD = {
    "memory_bytes": MEMORY_BYTES,
    "pids": PIDS + AGENT,
    "seccomp": "2",
    "no_new_privileges": "1",
    "host_root": False,
}
"""`first_limits` of a sandbox of `SPEC`."""
DYING_S = 10.0
"""Longer than a killed process takes to be gone."""
STATED_S = 20.0
"""Within this everything that a killed owner had is gone (docs/concepts/invariants.md)."""


@dataclass(frozen=True, kw_only=True)
class Seen:
    """One run, after its end."""

    said: list[dict]
    exit_code: int
    what: str
    """The fault."""
    survivors: list[int]
    """Of its family, after the stated time."""
    left: list[str]
    """Host objects that were not there before."""
    damaged: list[str]
    """Layers whose bytes are not what they were when they were stored, and half-built things."""
    outlived: list[int]
    """Commands past their deadline while the client was stopped."""
    next_one: list[dict]
    """What the run after it said, on the same store."""

    @property
    def crashed(self):
        """The owner or the spawner was killed: the kernel ends what they had."""
        return self.what in ("kill", "kill-spawner")

    def all(self, key):
        return [line[key] for line in self.said if key in line]


def first_limits(mark):
    """What holds the process with that mark, as the host sees it at its first instruction; None if it died meanwhile."""
    for pid in marked(mark):
        try:
            seen = held_by(pid)
        except OSError:
            return None
        # The kernel takes a process out of its cgroups while it dies, and one that lives waits for a line.
        return seen if seen == HELD or survivors(watch([pid]), DYING_S) else None
    return None


def held_by(pid):
    status = Path(f"/proc/{pid}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    nproc = next(line for line in Path(f"/proc/{pid}/limits").read_text().splitlines() if "Max processes" in line)
    return {
        "memory_bytes": memory_limit(pid),
        "pids": int(nproc.split()[2]),
        "seccomp": fields["Seccomp"],
        "no_new_privileges": fields["NoNewPrivs"],
        "host_root": fields["Uid"].split()[0] == "0",
    }


def memory_limit(pid):
    for line in Path(f"/proc/{pid}/cgroup").read_text().splitlines():
        _, controllers, place = line.split(":", 2)
        for root, name in (("memory", "memory.limit_in_bytes"), ("", "memory.max")):
            path = Path("/sys/fs/cgroup") / root / place.lstrip("/") / name
            if controllers == root and "dutyfree" in place and path.exists():
                return int(path.read_text())
    return None


def objects_return(seen):
    return seen.left


def nobody_without_an_owner(seen):
    return [] if seen.crashed else [f"process {pid}" for pid in seen.survivors]


def one_ending_each(seen):
    ended = Counter(seen.all("ended"))
    found = [f"action {number} ended {count} times" for number, count in ended.items() if count != 1]
    found += [f"action ended as {line['state']}" for line in seen.said if line.get("state", "lost") not in STATES]
    if seen.what != "kill":  # a killed client takes its actions along
        found += [f"action {number} never ended" for number in seen.all("begun") if number not in ended]
        found += [] if seen.all("done") else [f"it never came to its end: {seen.exit_code}"]
    return found


def claimed_once(seen):
    held, found = set(), []
    for line in seen.said:
        if "claimed" in line:
            found += [f"{line['claimed']} was claimed twice"] * (line["claimed"] in held)
            held.add(line["claimed"])
        held.discard(line.get("returned"))
    return found


def only_verified_ones_return(seen):
    found = [f"another rollout's {text!r}" for text in seen.all("foreign")]
    unverified = set()
    for line in seen.said:
        fault = line.get("fault")
        if fault and fault["point"] == "dutyfree.warm.reset" and fault["what"] == "DriverError":
            unverified.update(fault["about"])
        if line.get("claimed") in unverified:
            found.append(f"{line['claimed']} was handed out after its reset had failed")
    return found


def layers_never_change(seen):
    return seen.damaged


def limits_come_first(seen):
    return [f"at the first instruction: {one}" for one in seen.all("first") if one not in (None, HELD)]


def one_key_one_sandbox(seen):
    given = set(seen.all("keyed"))
    return [f"one key gave {sorted(given)}"] if len(given) > 1 else []


def gone_in_the_stated_time(seen):
    return [f"process {pid} after {STATED_S:g} s" for pid in seen.survivors if seen.crashed]


def deadlines_hold(seen):
    return [f"process {pid} outlived its deadline" for pid in seen.outlived]


def bytes_are_exact(seen):
    return seen.all("bytes")


def failures_are_no_rewards(seen):
    return [
        f"{line['truth']} was judged {line['reward']}" for line in seen.said if line.get("reward") != line.get("truth")
    ]


INVARIANTS = {
    1: ("host objects return to the baseline", objects_return),
    2: ("no process without a live owner", nobody_without_an_owner),
    3: ("every accepted action ends in exactly one terminal state", one_ending_each),
    4: ("no sandbox is claimed twice", claimed_once),
    5: ("a sandbox returns to a pool only if its reset was verified", only_verified_ones_return),
    6: ("base layers never change", layers_never_change),
    7: ("limits are active before the first untrusted instruction", limits_come_first),
    8: ("same idempotency key, one sandbox", one_key_one_sandbox),
    9: ("after a crash everything is gone within the stated time", gone_in_the_stated_time),
    10: ("deadlines hold without the client and without the agent", deadlines_hold),
    11: ("output bytes are exact up to the cap", bytes_are_exact),
    12: ("an infrastructure failure never becomes a reward", failures_are_no_rewards),
}


def broken(seen):
    """The invariants that do not hold, each with what was seen; and whether the next run works."""
    found = [f"{number} ({name}): {what}" for number, (name, check) in INVARIANTS.items() for what in check(seen)]
    refused = [line for line in seen.next_one if "refused" in line or "fault" in line]
    if refused or (seen.next_one and not any("done" in line for line in seen.next_one)):
        found.append(f"the next one does not work: {refused or seen.next_one[-3:]}")
    return found
