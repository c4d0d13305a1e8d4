"""Sandboxes by the command line of docker or podman: `dutyfree run -s examples.driver:driver --image debian -- id`."""

from __future__ import annotations

import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import dutyfree
from dutyfree import driver as kit

LIMITS = {"cpus": "--cpus={}", "memory_bytes": "--memory={0} --memory-swap={0}", "pids": "--pids-limit={}"}
LOST = re.compile("Error.*(is not running|[Nn]o such container|no container with name)")
OFFERED = {"networks": {"none", "host"}, "storages": {"memory", "disk"}, "limits": LIMITS, "users": True, "reset": True}
CAPABILITIES = kit.capabilities_for("api", isolation="namespace", **OFFERED)
NAMES = "dutyfree-container-cli-"


@dataclass(frozen=True, kw_only=True)
class Options:
    program: Literal["docker", "podman"] = "docker"


@dataclass(eq=False)
class Container(kit.Body):
    """One container. Its main process only sleeps."""

    order: kit.Order
    program: str

    async def start(self) -> None:
        flags = [f"--network={self.order.network}", f"--label={kit.OWNER_LABEL}={kit.owner_mark()}", "--pull=never"]
        for name, value in self.order.spec.limits.given().items():
            flags += LIMITS[name].format(value).split()
        words = [f"--name={self.order.id}", "--init", "--entrypoint=sleep", self.order.spec.image, "infinity"]
        made = await kit.completed(kit.run_program(self.program, "run", "--detach", *flags, *words))
        if made.code and re.search("image|reference", made.output, re.IGNORECASE):
            raise dutyfree.Misuse(made.output, field="image")
        if made.code:
            raise dutyfree.DriverError(made.output, step="create")

    async def execute(self, call: kit.ExecCall, sink: kit.Sink) -> kit.ExecEnd:
        argv = [self.program, "exec", "--interactive", *kit.exec_flags(call), self.order.id, *call.argv]
        end = await kit.stream_program(argv, call, sink)
        if end.code and LOST.match(end.output):
            raise dutyfree.SandboxLost(end.output, sandbox=self.order.id)
        return kit.ExecEnd(end.code, kit.refusal_of(end.output) if end.code in (125, 126, 127) else None)

    async def remove(self) -> None:
        end = await kit.run_program(self.program, "rm", "--force", "--volumes", self.order.id)
        if end.code and not LOST.match(end.output):
            raise dutyfree.DriverError(end.output, step="destroy", sandbox=self.order.id)


@dataclass(eq=False)
class CommandLine(kit.Backend):
    program: str
    version: str
    name = "container-cli"
    capabilities = CAPABILITIES

    def body(self, order: kit.Order) -> kit.Body:
        return Container(order, self.program)

    async def sweep(self) -> list[str]:
        form = f'--format={{{{.Names}}}} {{{{.Label "{kit.OWNER_LABEL}"}}}}'
        listed = await kit.run_program(self.program, "ps", "--all", f"--filter=label={kit.OWNER_LABEL}", form)
        marks = dict(line.split(" ", 1) for line in listed.output.splitlines() if line.startswith(NAMES))
        orphans = [name for name, mark in marks.items() if kit.is_orphan(mark)]
        for name in orphans:
            await kit.run_program(self.program, "rm", "--force", "--volumes", name)
        return orphans


class CliDriver(dutyfree.Driver):
    name = "container-cli"
    summary = "containers by the command line of docker or podman"

    def declared(self) -> list[dutyfree.Capabilities]:
        return [CAPABILITIES]

    def probe(self) -> dutyfree.Availability:
        found = shutil.which("docker") or shutil.which("podman")
        return dutyfree.Availability(available=bool(found), reason=found or "missing", enable="apt-get install podman")

    async def connect(self, options: Mapping[str, str]) -> dutyfree.Substrate:
        program = kit.read_options(options, Options, driver=self.name).program
        said = await kit.run_program(program, "version", "--format={{.Client.Version}}")
        if said.code:
            raise dutyfree.Unavailable(said.output, enable=f"apt-get install {program}", driver=self.name)
        return await kit.DriverSubstrate.open(CommandLine(program, f"{program} {said.output.strip()}"))


driver = CliDriver()
