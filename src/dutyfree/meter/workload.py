"""`Workload`: what a trial does in a sandbox, as data; and the one place that carries out its set-up.

A workload stays inside the directory in which the sandbox's actions start: it works on substrates that have no
private root (the host itself) without touching anything else there.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from dutyfree.core.contract import Sandbox
from dutyfree.core.spec import Stage
from dutyfree.meter.action import Action

GIT_PORT = 9418
"""Where a sandbox without a network finds the git server on its own loopback."""

SAME_ENV = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "LANG": "C.UTF-8",
    "LC_CTYPE": "C.UTF-8",
    "SHELL": "/bin/bash",
}
"""Given to every sandbox of every tier: an environment that differs by substrate changes what commands find and do."""

READ_ONLY_GIT = {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_TERMINAL_PROMPT": "0"}
"""The same git everywhere: no configuration but the repository's own."""


Route = Literal["network", "relay", "upload"]
"""To the git server: over the sandbox's network, or by a relayed port; or no way, and the repository is uploaded."""


class CheckFailed(Exception):
    """The sandbox answered, and the answer is wrong."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Clone:
    """A repository that set-up fetches over the network; where there is no way to it, from a copy that is uploaded."""

    served: Path
    """The directory that the git server serves."""
    name: str
    """Of the repository on the git server."""
    commit: str
    """Checked out, and verified by its full id."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Training:
    """A small reinforcement-learning problem: to find out which of these attempts earns a reward."""

    attempts: tuple[tuple[Action, ...], ...]
    """What a policy can choose from, as trajectories that verify their own reward."""
    rewards: tuple[float, ...]
    """Of each attempt."""
    iterations: int
    group: int
    """Rollouts per iteration, run together; the next iteration waits for all of them."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Exercise:
    """One ability of a sandbox, tried on one that has been used."""

    ability: Literal["reset", "fork"]
    dirty: Action
    """Changes the sandbox before the time begins."""
    after: Action
    """Must hold afterwards, outside of the time: in the sandbox that was reset, in every fork."""
    forks: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Surroundings:
    """The place in which recorded commands ran, and can do again what they did."""

    image: str | None = None
    cwd: str | None = None
    """Absolute."""
    shell: tuple[str, ...] = ()
    """The words before the command."""
    repository: Path | None = None
    """A local tree that is uploaded to `cwd` where the image has none."""

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of what a faithful replay would need and nobody told."""
        return tuple(
            name for name, value in (("image", self.image), ("directory", self.cwd), ("shell", self.shell)) if not value
        )

    def to_dict(self) -> dict[str, object]:
        """Describe the workload for the manifest."""
        return {
            "image": self.image,
            "cwd": self.cwd,
            "shell": list(self.shell),
            "repository": "uploaded" if self.repository else "of the image",
            "missing": list(self.missing),
        }


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """One tier: how to prepare a sandbox, which actions follow, how to leave it clean."""

    tier: str
    actions: Callable[[int], tuple[Action, ...]]
    """The trajectory of that many steps; always the same for the same number."""
    description: str
    env: Mapping[str, str] = field(default_factory=dict)
    programs: tuple[str, ...] = ()
    """Absolute paths that must be executable inside, else the tier is not offered."""
    uploads: tuple[tuple[Path, str], ...] = ()
    """Local trees, and their names in the work directory."""
    think_s: tuple[float, ...] = ()
    """Equally likely pauses before an action, of which the trial's seed draws one each; they are in no time but their own."""
    preloaded: bool = False
    """Set-up makes a state that the tier takes as given: its time is recorded, and in no total."""
    clone: Clone | None = None
    directory: str | None = None
    """Where actions run, under the work directory; None: where the sandbox starts them, and no set-up at all."""
    reset: Action | None = None
    """Brings the work directory back to its state after set-up."""
    training: Training | None = None
    """The trial is a training run over these actions, and not a single trajectory."""
    recorded: bool = False
    """Its commands were written by somebody else, and may do anything."""
    surroundings: Surroundings | None = None
    """Of recorded commands."""
    exit_codes: tuple[int | None, ...] = ()
    """What each recorded command ended with where it was recorded; None: not known."""
    steps: tuple[int, ...] | None = None
    """The only lengths that make sense; None: any."""
    needs: tuple[str, ...] = ()
    """Capabilities without which the tier is not offered."""
    stages: tuple[Stage, ...] = ()
    """Of the sandbox's spec: what set-up need not do."""
    base: str | None = None
    """The work directory, where the stages fix it; None: where the sandbox starts actions."""
    verify: Action | None = None
    """Run after a cold start, outside of its time: must hold if the state is the one that was asked for."""
    exercise: Exercise | None = None
    """The trial measures this ability, and not a trajectory."""


async def find_directory(box: Sandbox, *, judged: bool = True) -> str:
    """Find the directory in which the sandbox starts actions: the work directory of everything that follows."""
    out = await box.run("pwd")
    path = out.text().strip()
    if path.startswith("/"):
        return path
    if judged:
        raise CheckFailed(f"pwd answered {out.stdout!r} (exit code {out.exit_code})")
    return "/"


async def set_up(
    box: Sandbox, workload: Workload, server: tuple[str, int] | None, *, judged: bool = True
) -> str | None:
    """Prepare a sandbox for the workload; the directory its actions run in.

    `server` is where the git server listens, as seen from the machine. It is handed into the sandbox by a
    relayed port unless the sandbox shares the machine's network; None: the sandbox cannot reach it. With
    `judged=False` (a substrate that does nothing) no answer is taken as wrong.
    """
    if workload.surroundings is not None and workload.surroundings.cwd is not None:
        return await _surround(box, workload.surroundings.cwd, workload.surroundings.repository)
    if workload.directory is None:
        return None
    work = workload.base or await find_directory(box, judged=judged)
    for local, name in workload.uploads:
        await box.upload(local, f"{work}/{name}")
    directory = f"{work}/{workload.directory}"
    if workload.clone is not None:
        await _clone(box, workload.clone, directory, server, judged=judged)
    return directory


async def _surround(box: Sandbox, cwd: str, repository: Path | None) -> str:
    """The directory of a recording, with its repository in it."""
    if repository is not None:
        await box.upload(repository, cwd)
    return cwd


async def _clone(box: Sandbox, clone: Clone, directory: str, server: tuple[str, int] | None, *, judged: bool) -> None:
    if server is None:
        copy = f"{directory}.git"
        await box.upload(clone.served / clone.name, copy)
        source = f"file://{copy}"
    else:
        host, port = server
        if box.spec.network == "none" and box.capabilities.forward:
            forward = await box.provide(GIT_PORT, server)
            host, port = "127.0.0.1", forward.port
        source = f"git://{host}:{port}/{clone.name}"
    script = (
        f"git clone -q {source} {directory}"
        f" && git -C {directory} checkout -q {clone.commit} && git -C {directory} rev-parse HEAD"
    )
    out = await box.run(script)
    if judged and (not out.ok or out.text().strip() != clone.commit):
        raise CheckFailed(f"clone of {clone.name} failed: {(out.stderr or out.stdout).decode(errors='replace')[-300:]}")
