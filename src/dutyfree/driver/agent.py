"""`AgentSandbox`: every action over one stream to our agent. Also the agent's program, for bodies that have to bring it.

The program is one static file without any dependency, so it runs in every Linux root.
"""

from __future__ import annotations

from pathlib import Path

from dutyfree.core.checkout import make
from dutyfree.core.errors import DriverError, SandboxLost, Unavailable
from dutyfree.driver.backend import Body
from dutyfree.driver.sandbox import DriverSandbox
from dutyfree.guest.argument import check_request, env_items, optional_path, user_bytes
from dutyfree.guest.link import Link
from dutyfree.guest.sandbox import AgentActions

AGENT_INSIDE = "/dev/.dutyfree/agent"
"""The path of the program in a container, on a read-only bind mount: /dev is never the image's own."""


def agent_program(driver: str) -> Path:
    """Find the agent's program; `Unavailable` with the command that builds it."""
    path = Path(__file__).parents[1] / "_native" / "dutyfree-agent"
    if not path.exists():
        raise Unavailable(
            "the native programs are not built",
            enable=make("setup", "pip install --force-reinstall dutyfree"),
            driver=driver,
        )
    return path


class AgentSandbox(AgentActions, DriverSandbox):
    """A sandbox with our agent inside. `link` is replaced by a reset."""

    _joined = False

    async def _join(self, body: Body) -> None:
        """Take over the stream to the agent, and wait for its greeting. What every action starts with is sent meanwhile."""
        self.link = link = Link.attach(await body.agent(), sandbox=self.id)
        self._joined, self._forwards = True, set()
        if self.spec.idle_s is not None:
            body.idle_s = self.spec.idle_s
        link.cause = body.reason
        if not body.greets_first:
            self._configure(link, body)
        await _greet(link, body)
        if body.greets_first:
            self._configure(link, body)
        link.broken = self._begin_end

    def _configure(self, link: Link, body: Body) -> None:
        wanted = self._defaults(body)
        self._user = wanted.user
        items = env_items(wanted.env)
        idle_ns = int((self.spec.idle_s or 0) * 1e9)
        if items or wanted.cwd or wanted.user or idle_ns:
            check_request(b"".join(items), (), items, "env")
            cwd, user = optional_path("cwd", wanted.cwd), user_bytes(wanted.user)
            link.configure(cwd=cwd, user=user, env=items, idle_ns=idle_ns)

    async def _leave(self, why: str) -> None:
        """Close the forwards, then the stream; the agent ends with it, and every process of the sandbox."""
        if not self._joined:
            return
        forwards, self._forwards = self._forwards, set()
        for made in forwards:
            await made.close()
        self.link.close(why)

    async def _check_alive(self) -> None:
        if self._end is not None or self.link.lost is not None:
            raise await self.link.explain()


async def _greet(link: Link, body: Body) -> None:
    try:
        await link.hello(body.hello_timeout_s)
    except (SandboxLost, Unavailable) as error:
        why = await body.cause()
        raise DriverError(f"the agent did not start: {why or error.message}", step="ready") from error
