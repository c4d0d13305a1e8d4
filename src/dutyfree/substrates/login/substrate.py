"""The substrate over one machine: each sandbox is a directory there, and an agent that ends with its stream.

What the machine's user can do, a sandbox can do: nothing stands between it and the machine, which is meant to be a
cloud VM that exists for this purpose.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import shlex
import subprocess
import tempfile
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from dutyfree.core.contract import Capabilities, Sandbox, Substrate
from dutyfree.core.errors import DriverError, Misuse, Unavailable
from dutyfree.core.pending import finish, finish_all
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import now_ns
from dutyfree.driver.agent import agent_program
from dutyfree.driver.backend import ImageDefaults
from dutyfree.driver.offer import check_offered, strictest_network
from dutyfree.driver.program import exit_of
from dutyfree.substrates.boot import Birth, boot_agent
from dutyfree.substrates.login.client import Client

CAPABILITIES = Capabilities(
    isolation="none",
    dispatch="agent",
    networks=frozenset({"host"}),
    storages=frozenset({"disk", "memory"}),
    users=True,
    stream=True,
    terminal=True,
    shell=True,
    forward=True,
    process_tree=True,
    notes={
        "isolation": "commands run on the other machine as the user who logs in; the machine itself is the boundary",
        "limits": "the machine's own",
        "networks": "commands see the machine's own network",
        "snapshot": "files of another machine: not offered",
    },
)

END_S = 10.0
"""How long a connection may take to end before it is cut."""

_LOOK = 'uname -sm; id -u; echo "${XDG_CACHE_HOME:-$HOME/.cache}/dutyfree"'
_MACHINE = "Linux x86_64"


class SshSubstrate(Substrate):
    """Directories on one machine."""

    name = "ssh"

    def __init__(self, client: Client, *, version: str, program: str, root: bool, last_words: str) -> None:
        self.version = version
        self._last_words = last_words
        self.capabilities = CAPABILITIES if root else replace(CAPABILITIES, users=False)
        self._client = client
        self._program = program
        self._numbers = itertools.count(1)
        self.after: Callable[[], Awaitable[None]] | None = None
        """Called when a sandbox has ended: for an owner of the whole machine."""
        self._boxes: dict[str, Sandbox] = {}
        self._closed = False

    async def _create(self, spec: Spec) -> Sandbox:
        start_ns = now_ns()
        if self._closed:
            raise Misuse("the substrate is closed", driver=self.name)
        if spec.image != "host":
            raise Misuse(f"{spec.image!r} is not known: there is only 'host'", field="image", driver=self.name)
        check_offered(spec, spec.network or strictest_network(self.capabilities), self.capabilities, driver=self.name)
        name = f"dutyfree-ssh-{os.getpid()}-{next(self._numbers)}-{os.urandom(4).hex()}"
        place = f"{'/dev/shm' if spec.storage == 'memory' else '/tmp'}/{name}"  # noqa: S108 - fails if it is there already
        box = self._boxes[name] = await self._boot(spec, name, place, start_ns)
        return box

    async def _boot(self, spec: Spec, name: str, place: str, start_ns: int) -> Sandbox:
        words = tempfile.TemporaryFile()  # noqa: SIM115 - what ssh itself says; closed with the sandbox
        try:
            process, stream = self._client.stream(_session(place, self._program, self._last_words), words.fileno())
        except BaseException:
            words.close()
            raise

        async def release() -> None:
            try:
                await _end(process)
            finally:
                words.close()
                self._boxes.pop(name, None)
                if self.after is not None:
                    await self.after()

        async def reason() -> str | None:
            said = "" if words.closed else os.pread(words.fileno(), 4096, 0).decode(errors="replace").strip()
            return f"ssh: {said}" if said else None

        home, scratch = f"{place}/home", f"{place}/scratch"
        defaults = ImageDefaults(env={"HOME": home, "TMPDIR": scratch}, cwd=home)
        birth = Birth(
            driver=self.name, id=name, spec=spec, capabilities=self.capabilities, release=release,
            failure=reason, defaults=defaults, start_ns=start_ns,
        )  # fmt: skip
        return await boot_agent(birth, stream)

    async def close(self) -> None:
        """Destroy what is left, and hang up."""
        self._closed = True
        try:
            await finish_all([box.destroy() for box in self._boxes.values()])
        finally:
            await self._client.close()


def _session(place: str, program: str, last_words: str) -> str:
    """Runs the agent in a directory that goes away with it. Its end is the stream's: also when nobody is left to ask."""
    here = shlex.quote(place)
    return (
        f"umask 022 && mkdir {here} {here}/home && mkdir -m 1777 {here}/scratch && cd {here}/home || exit 254\n"
        f"trap '' HUP INT TERM\n"
        f"{shlex.quote(program)}\n"
        f"cd / && chmod -R u+rwX {here} && rm -rf {here}\n{last_words}"
    )


async def _end(process: subprocess.Popen[bytes]) -> None:
    """The stream is closed: the session ends by itself, after it has cleared away."""
    with suppress(TimeoutError):
        async with asyncio.timeout(END_S):
            await exit_of(process)


async def open_ssh(client: Client, last_words: str = "") -> SshSubstrate:
    """Look at the machine, put the agent there if it is not. `last_words` are said to its shell after each sandbox."""
    try:
        return await _open(client, last_words)
    except BaseException:
        await finish(client.close())
        raise


async def _open(client: Client, last_words: str) -> SshSubstrate:
    said = await client.say(_LOOK)
    lines = said.stdout.splitlines()
    if said.code != 0 or len(lines) != 3:
        raise DriverError(f"{client.host} answers strangely: {said.stderr or said.stdout!r}", driver="ssh")
    machine, uid, cache = lines
    if machine != _MACHINE:
        raise Unavailable(f"{client.host} is {machine}, and the agent is built for {_MACHINE}", driver="ssh")
    agent = agent_program("ssh")
    program = f"{cache}/agent-{hashlib.sha256(agent.read_bytes()).hexdigest()[:16]}"
    await _install(client, agent, program)
    version = f"ssh to {client.host}"
    return SshSubstrate(client, version=version, program=program, root=uid == "0", last_words=last_words)


async def _install(client: Client, agent: Path, program: str) -> None:
    path = shlex.quote(program)
    if (await client.say(f"[ -x {path} ]")).code == 0:
        return
    fresh = shlex.quote(f"{program}.{os.urandom(4).hex()}")
    script = f'umask 077; mkdir -p "$(dirname {path})" && cat >{fresh} && chmod 700 {fresh} && mv {fresh} {path}'
    said = await client.say(script, stdin=agent.read_bytes())
    if said.code != 0:
        raise Unavailable(f"the agent cannot be put on {client.host}: {said.stderr}", driver="ssh", step="connect")
