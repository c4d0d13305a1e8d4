"""The substrate over a cloud's machines: each sandbox is an instance of its own, with our agent in it by way of ssh.

An instance ends itself when the stream to its agent ends, so a client that was killed pays for nothing more; one that
was never reached is ended by its own clock, and by the next client's sweep.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace

from dutyfree.core.contract import Capabilities, Sandbox, Substrate
from dutyfree.core.errors import DriverError, Misuse, Unavailable
from dutyfree.core.pending import finish, finish_all
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import now_ns
from dutyfree.driver.owner import owner_mark
from dutyfree.driver.program import poll
from dutyfree.substrates.ec2.cloud import Cloud, Kind, Reach
from dutyfree.substrates.login.client import Client
from dutyfree.substrates.login.substrate import CAPABILITIES as BY_SSH
from dutyfree.substrates.login.substrate import SshSubstrate, open_ssh

CAPABILITIES: Capabilities = replace(
    BY_SSH,
    isolation="vm",
    notes={
        "isolation": "the cloud's own virtual machine, one for each sandbox",
        "limits": "the machine type's own",
        "networks": "the machine's own network, as its security group allows",
        "snapshot": "not offered",
    },
)

ANSWER_TIMEOUT_S = 180.0
"""From an address to a login."""
UNCLAIMED_MIN = 360
"""An instance that lives longer than this was forgotten, and powers itself off."""

POWER_OFF = "sudo -n poweroff || poweroff"


@dataclass(frozen=True, kw_only=True, slots=True)
class Way:
    """The way in which an instance is reached."""

    user: str
    reach: Reach
    address: str | None = None
    """Instead of the one the cloud tells: through a tunnel, or a test."""
    options: dict[str, str] = field(default_factory=dict)
    """Further ones of the `ssh` driver: port, identity, config."""
    power_off: bool = True


class Ec2Substrate(Substrate):
    """Instances of one kind."""

    name = "ec2"
    capabilities = CAPABILITIES

    def __init__(self, cloud: Cloud, kind: Kind, way: Way) -> None:
        self.version = f"ec2 {kind.type} {kind.image}"
        self._cloud = cloud
        self._kind = kind
        self._way = way
        self._machines: dict[str, SshSubstrate] = {}
        self._closed = False

    async def _create(self, spec: Spec) -> Sandbox:
        start_ns = now_ns()
        if self._closed:
            raise Misuse("the substrate is closed", driver=self.name)
        name = f"dutyfree-{os.getpid()}-{os.urandom(6).hex()}"
        script = f"#!/bin/sh\nshutdown -P +{UNCLAIMED_MIN}\n" if self._way.power_off else "#!/bin/sh\n"
        instance = await self._cloud.start(self._kind, owner_mark(), name, script)
        try:
            address = await self._cloud.address(instance, self._way.reach)
            created_ns = now_ns()
            machine = self._machines[instance] = await self._reach(instance, address)
            machine.capabilities = self.capabilities
            machine.after = lambda: self._end(instance)
            box = await machine.create(spec)
        except BaseException:
            await finish(self._end(instance))
            raise
        box.timeline.spans.clear()  # what they say of the login is a part of our `ready`
        box.timeline.add("create", start_ns, created_ns)
        box.timeline.add("ready", created_ns, now_ns())
        return box

    async def _reach(self, instance: str, address: str) -> SshSubstrate:
        host = f"{self._way.user}@{self._way.address or address}"
        refused: list[Unavailable] = []  # the last time

        async def log_in() -> SshSubstrate | None:
            client = Client.open({"host": host, **self._way.options})
            try:
                return await open_ssh(client, POWER_OFF if self._way.power_off else "")
            except Unavailable as error:  # it is still booting
                refused[:] = [error]
                return None

        machine = await poll(log_in, deadline_s=ANSWER_TIMEOUT_S, longest_pause_s=1.0)
        if machine is None:
            raise DriverError(f"{instance}: {refused[0].message}", driver=self.name, step="create") from refused[0]
        return machine

    async def _end(self, instance: str) -> None:
        machine = self._machines.pop(instance, None)
        try:
            await self._cloud.terminate(instance)
        finally:
            if machine is not None:
                machine.after = None
                await machine.close()

    async def close(self) -> None:
        """Terminate what is left, all of it, and then say what could not be."""
        self._closed = True
        await finish_all(map(self._end, list(self._machines)))
