"""The substrate over agent-sandbox: each sandbox is a claim, bound to a pod of its template, in either dispatch mode.

The pod is the template's, so its main process is not ours to end. The exec call that holds it ends, however that comes
about, by ending every other process that it can see.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from dutyfree.core.contract import Capabilities, Dispatch, Sandbox
from dutyfree.core.errors import Misuse
from dutyfree.core.pending import finish
from dutyfree.core.spec import Network, Spec, Storage
from dutyfree.substrates.boot import Birth
from dutyfree.substrates.claim.claim import RENEW_S, Claim, last_end_s
from dutyfree.substrates.claim.group import CLAIMS, DRIVER, POOLS, VERSION, check_served
from dutyfree.substrates.claim.template import Pool, Template, find_template, template_of
from dutyfree.substrates.kubernetes.base import PodSubstrate
from dutyfree.substrates.kubernetes.client import Client
from dutyfree.substrates.kubernetes.manifest import INSIDE
from dutyfree.substrates.kubernetes.owner import PODS, Owner, every, stop
from dutyfree.substrates.kubernetes.pod import GREETING, Pod
from dutyfree.substrates.kubernetes.substrate import Settings, look, pod_capabilities

HOLD = f"mkdir -p -m 700 {INSIDE} && exec 8>&2 || exit 70"
END = "kill -9 -1"


@dataclass(frozen=True, kw_only=True, slots=True)
class ClaimSettings:
    """Settings for making claims."""

    dispatch: Dispatch = "agent"
    wait: bool = True
    """For the pod's `Ready`, as agent-sandbox's own clients do, instead of trying an exec call until it works."""
    repository: str = ""
    template: str | None = None
    pool: str | None = None
    """One that is there already; else we make our own over the template."""
    warm: int = 0
    """Sandboxes that our own pool keeps ready."""


def claim_capabilities(
    networks: frozenset[Network], dispatch: Dispatch, template: Template | None = None
) -> Capabilities:
    """Capabilities of a claimed pod; the template decides some of them."""
    pods = pod_capabilities(networks, Settings(dispatch=dispatch))
    limits = ", ".join(f"{name} {value}" for name, value in template.limits.items()) if template else ""
    read_only = template is not None and template.read_only
    notes = {
        **pods.notes,
        "limits": f"a claim has none of its own: its pod has its template's{f' ({limits})' if limits else ''}",
        "storages": "the template's root is read-only"
        if read_only
        else "writes go where the template's pods have their root",
        "isolation": "the template may name a stronger runtime class, behind which the cluster does not let us see",
    }
    storages: frozenset[Storage] = frozenset({"memory"}) if read_only else pods.storages
    medium: Storage = "memory" if read_only else "disk"
    return replace(pods, limits=frozenset(), storages=storages, medium=medium, notes=notes)


class ClaimSubstrate(PodSubstrate):
    """Claims of one template. Made by `open_claims`."""

    def __init__(
        self, client: Client, owner: Owner, settings: ClaimSettings, template: Template, pool: Pool, version: str,
        capabilities: Capabilities,
    ) -> None:  # fmt: skip
        super().__init__(
            DRIVER, client, owner, dispatch=settings.dispatch, repository=settings.repository, version=version,
            capabilities=capabilities,
        )  # fmt: skip
        self._wait = settings.wait
        self._template = template
        self._pool = pool
        self._claims: set[Claim] = set()
        self._renewing = asyncio.create_task(every(RENEW_S, self._renew))

    async def _make(self, spec: Spec, name: str, start_ns: int) -> Sandbox:
        await self._check_image(spec.image)
        claim = Claim(self._client, name, self._template.container, end_s=last_end_s(self._client, spec.lifetime_s))
        birth = Birth(
            driver=self.name, id=name, spec=spec, capabilities=self.capabilities, release=self._releasing(claim),
            failure=claim.why, start_ns=start_ns,
        )  # fmt: skip

        async def begin() -> Pod:
            self._claims.add(claim)
            await claim.create(self._pool.name, self._owner)
            birth.created()
            return await claim.bound()

        return await self._boot(birth, begin, wait=self._wait, reached=birth.waited)

    async def _check_image(self, name: str) -> None:
        wanted, have = await self._find_image(name), self._template.image
        if _plain(wanted) != _plain(have):
            raise Misuse(
                f"template {self._template.name!r} runs {have!r}, not {wanted!r}", field="image", driver=self.name
            )

    def _holding(self, steps: str, command: str) -> str:
        return f"{HOLD}; {GREETING}; {steps} && {command}; {END}"

    def _releasing(self, claim: Claim) -> Callable[[], Awaitable[None]]:
        async def release() -> None:
            self._claims.discard(claim)
            await claim.remove()

        return release

    async def _renew(self) -> None:
        for claim in list(self._claims):
            await claim.extend()

    async def _leave(self) -> None:
        await stop([self._renewing])
        await self._pool.remove()


async def open_claims(client: Client, settings: ClaimSettings) -> ClaimSubstrate:
    """Look, claim a place, sweep, make a pool. The client is the substrate's from here on."""
    try:
        version, networks = await look(client)
        await check_served(client)
        if settings.pool is not None:
            template = await template_of(client, settings.pool)
        else:
            template = await find_template(client, settings.template)
        owner = Owner(client, (CLAIMS, POOLS, PODS))
        await owner.claim()
        try:
            pool = await _pool(client, settings, template, owner)
            return ClaimSubstrate(
                client, owner, settings, template, pool, f"{version}, agent-sandbox {VERSION}",
                claim_capabilities(networks, settings.dispatch, template),
            )  # fmt: skip
        except BaseException:
            await finish(owner.release())
            raise
    except BaseException:
        await finish(client.close())
        raise


async def _pool(client: Client, settings: ClaimSettings, template: Template, owner: Owner) -> Pool:
    if settings.pool is not None:
        return Pool(client=client, name=settings.pool, own=False)
    pool = Pool(client=client, name=f"dutyfree-{os.getpid()}-{os.urandom(4).hex()}", own=True)
    await pool.create(template, settings.warm, owner)
    return pool


def _plain(image: str) -> str:
    """Without what a node adds to a short name."""
    return image.removeprefix("docker.io/").removeprefix("library/")
