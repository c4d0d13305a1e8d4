"""A SandboxTemplate as far as a sandbox depends on it, and the pool that claims of it name.

The template belongs to whoever runs the cluster: image, limits, user and runtime class are its. Refuses one whose pods
share the node's processes: the end of a sandbox is the end of every process it can see.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

from dutyfree.core.errors import DriverError, Misuse, Unavailable
from dutyfree.substrates.claim.claim import remove
from dutyfree.substrates.claim.group import DRIVER, POOLS, TEMPLATES
from dutyfree.substrates.kubernetes.client import Client
from dutyfree.substrates.kubernetes.manifest import owned_metadata
from dutyfree.substrates.kubernetes.owner import Kind, Owner
from dutyfree.substrates.kubernetes.pod import START_S, post

MAKE_ONE = "kubectl apply -f docs/guide/template.yaml"
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"
_ABSENT = 404


@dataclass(frozen=True, kw_only=True, slots=True)
class Template:
    """Facts of a template's pods."""

    name: str
    image: str
    container: str
    limits: Mapping[str, str] = field(default_factory=dict)
    """In Kubernetes' own words."""
    read_only: bool = False
    """The root cannot be written."""


async def find_template(client: Client, name: str | None) -> Template:
    """The one of that name; without a name, the only one there is."""
    if name is not None:
        return read_template(await _get(client, TEMPLATES, name, "template"))
    names = await list_templates(client)
    if not names:
        where = f"namespace {client.namespace!r} has no SandboxTemplate"
        raise Unavailable(where, enable=MAKE_ONE, driver=DRIVER)
    if len(names) > 1:
        raise Misuse(f"must be one of {', '.join(names)}", field="template", driver=DRIVER)
    return await find_template(client, names[0])


async def template_of(client: Client, pool: str) -> Template:
    """Find the template of a pool's sandboxes."""
    found = await _get(client, POOLS, pool, "pool")
    return await find_template(client, str(found["spec"]["sandboxTemplateRef"]["name"]))


async def list_templates(client: Client) -> list[str]:
    """The names of the namespace's templates."""
    found = await client.call("GET", client.place(TEMPLATES[0], group=TEMPLATES[1]))
    if not found.ok:
        raise Unavailable(
            f"the cluster lets us list no templates in namespace {client.namespace!r}: {found.message}",
            enable="kubectl apply -f docs/guide/claims.yaml",
            driver=DRIVER,
        )
    return sorted(str(one["metadata"]["name"]) for one in found.body["items"])


def read_template(resource: Mapping[str, Any]) -> Template:
    """From the cluster's answer. `Misuse` for one that cannot be used."""
    name, pod = str(resource["metadata"]["name"]), resource["spec"]["podTemplate"]
    if pod["spec"].get("hostPID"):
        raise Misuse(
            f"the pods of {name!r} share the node's processes (hostPID), which a sandbox must not end with itself",
            field="template",
            driver=DRIVER,
        )
    containers = {str(one["name"]): one for one in pod["spec"]["containers"]}
    asked = ((pod.get("metadata") or {}).get("annotations") or {}).get(_DEFAULT_CONTAINER)
    container = asked if asked in containers else next(iter(containers))
    chosen = containers[container]
    return Template(
        name=name,
        image=str(chosen["image"]),
        container=container,
        limits={key: str(value) for key, value in (chosen.get("resources", {}).get("limits") or {}).items()},
        read_only=bool((chosen.get("securityContext") or {}).get("readOnlyRootFilesystem")),
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Pool:
    """The pool that claims name. One of ours goes with its Lease; another's is only used."""

    client: Client
    name: str
    own: bool

    async def create(self, template: Template, warm: int, owner: Owner) -> None:
        """Make it, and wait until `warm` sandboxes are ready in it."""
        manifest = {
            "apiVersion": POOLS[1].removeprefix("apis/"),
            "kind": "SandboxWarmPool",
            "metadata": owned_metadata(self.name, owner.mark, owner.reference),
            "spec": {"replicas": warm, "sandboxTemplateRef": {"name": template.name}},
        }
        await post(self.client, self.client.place(POOLS[0], group=POOLS[1]), manifest)
        try:
            async with asyncio.timeout(START_S):
                await self._filled(warm)
        except TimeoutError as error:
            raise DriverError(
                f"the pool has no {warm} ready sandboxes after {START_S:g} s", driver=DRIVER, step="connect"
            ) from error

    async def remove(self) -> None:
        """With the sandboxes that nobody claimed; somebody else's is left alone."""
        if self.own:
            await remove(self.client, self.client.place(POOLS[0], self.name, POOLS[1]))

    async def _filled(self, warm: int) -> None:
        if not warm:
            return
        path = self.client.place(POOLS[0], group=POOLS[1])
        async with aclosing(self.client.follow(path, self.name)) as events:
            async for event in events:
                if event["object"].get("status", {}).get("readyReplicas", 0) >= warm:
                    return


async def _get(client: Client, kind: Kind, name: str, option: str) -> dict[str, Any]:
    found = await client.call("GET", client.place(kind[0], name, kind[1]))
    if found.status == _ABSENT:
        raise Misuse(f"namespace {client.namespace!r} has no {kind[0]} {name!r}", field=option, driver=DRIVER)
    if not found.ok:
        raise Unavailable(
            f"the cluster lets us read no {kind[0]} in namespace {client.namespace!r}: {found.message}",
            enable="kubectl apply -f docs/guide/claims.yaml",
            driver=DRIVER,
        )
    body: dict[str, Any] = found.body
    return body
