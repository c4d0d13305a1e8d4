"""The stage a probe plays on: sandboxes with small limits, and the attempts that run in them.

An attempt is a function of `dutyfree.probe.payload`. The payload travels as one zip that any python3 can run, and
answers with one line of JSON. What it says is evidence, not proof: verdicts rest on what the host saw.
"""

from __future__ import annotations

import io
import json
import secrets
import zipfile
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from typing import Any

from dutyfree.core.contract import Sandbox, Substrate
from dutyfree.core.egress import Egress
from dutyfree.core.errors import SandboxLost, Unavailable, Unsupported
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Limits, Spec

ATTEMPT_TIMEOUT_S = 30.0

_PACKAGES = ("dutyfree", "dutyfree/probe", "dutyfree/probe/payload")


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """End of an attempt, and its report."""

    outcome: Outcome
    said: Mapping[str, Any]
    """Empty if it died before it could speak."""

    def got(self, secret: bytes) -> bool:
        """The secret came out, on either stream."""
        return secret in self.outcome.stdout or secret in self.outcome.stderr


class Stage:
    """One sandbox with the payload in it."""

    def __init__(self, box: Sandbox, path: str) -> None:
        self.box = box
        self._path = path

    def command(self, name: str, **arguments: object) -> list[str]:
        """Command that runs the attempt `name` in this sandbox."""
        return ["python3", "-I", self._path, name, json.dumps(arguments)]

    async def attempt(
        self, name: str, *, timeout_s: float = ATTEMPT_TIMEOUT_S, user: str | None = None, **arguments: object
    ) -> Attempt:
        """Run an attempt to its end; one that takes its sandbox down with it ends as ``cancelled``."""
        try:
            outcome = await self.box.run(self.command(name, **arguments), timeout_s=timeout_s, user=user)
        except SandboxLost:
            return Attempt(outcome=Outcome(ending="cancelled"), said={})
        if outcome.exit_code == 127:
            raise Unavailable("the image has no python3", sandbox=self.box.id)
        return Attempt(outcome=outcome, said=_last_json(outcome.stdout))

    def on(self, box: Sandbox) -> Stage:
        """The same stage in another sandbox, which has the payload already: a fork."""
        return Stage(box, self._path)

    async def reset(self) -> None:
        """Reset the sandbox, which takes the payload away: it is brought again."""
        await self.box.reset()
        await self.box.write(self._path, payload())

    async def alive(self) -> bool:
        """The sandbox still does what it is asked."""
        word = secrets.token_hex(8)
        try:
            outcome = await self.box.run(["echo", word], timeout_s=ATTEMPT_TIMEOUT_S)
        except SandboxLost:
            return False
        return outcome.ok and outcome.stdout == word.encode() + b"\n"


@asynccontextmanager
async def stage(substrate: Substrate, network: Egress | None = None, /, **limits: Any) -> AsyncIterator[Stage]:
    """A fresh sandbox, with those of the limits that the caller names; `network`: not what is strictest."""
    spec = spec_of(**limits)
    async with substrate.create(replace(spec, network=network) if network else spec) as box:
        path = f"/tmp/probe-{secrets.token_hex(8)}.pyz"  # noqa: S108 (inside the sandbox)
        await box.write(path, payload())
        try:
            yield Stage(box, path)
        finally:
            with suppress(SandboxLost, OSError):  # it went with the sandbox, or an attempt took it away
                await box.remove(path)


def spec_of(**limits: Any) -> Spec:
    """Ask for those of the limits that the caller names, on the strictest network there is."""
    return Spec(limits=Limits(**limits))


def unenforced(substrate: Substrate, *names: str) -> str | None:
    """Which of the limits the substrate says it does not enforce."""
    missing = sorted(set(names) - substrate.capabilities.limits)
    return f"does not enforce {', '.join(missing)}" if missing else None


def shares_kernel(substrate: Substrate) -> bool:
    """Tell whether sandboxes run on the host's own kernel: an attempt that succeeds inside succeeds there."""
    return substrate.capabilities.isolation in ("none", "namespace")


def need(condition: bool, what: str) -> None:
    """`Unsupported` unless the machine or substrate has what a probe needs."""
    if not condition:
        raise Unsupported(what)


@cache
def payload() -> bytes:
    """The zip that runs inside: standard library only, stored without compression."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for package in _PACKAGES:
            archive.writestr(f"{package}/__init__.py", "")
        for source in files("dutyfree.probe.payload").iterdir():
            if source.name.endswith(".py") and source.name != "__init__.py":
                archive.writestr(f"{_PACKAGES[-1]}/{source.name}", source.read_bytes())
        archive.writestr("__main__.py", "from dutyfree.probe.payload.main import main\nmain()\n")
    return buffer.getvalue()


def _last_json(output: bytes) -> Mapping[str, Any]:
    lines = output.splitlines()
    try:
        said = json.loads(lines[-1]) if lines else {}
    except ValueError:
        return {}
    return said if isinstance(said, dict) else {}
