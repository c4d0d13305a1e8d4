"""`Plans`: from a spec to how it is got, remembered: this is the first step of every claim."""

from __future__ import annotations

from dataclasses import replace

from dutyfree.core.contract import Capabilities, Substrate, strictest_network
from dutyfree.core.spec import Spec
from dutyfree.core.timeline import now_ns
from dutyfree.driver.offer import check_offered
from dutyfree.warm.chain import Chain, chain_of
from dutyfree.warm.settings import Settings
from dutyfree.warm.shelf import Plan

PLAN_AGE_NS = 1_000_000_000
"""How long an image that was looked at counts as unchanged."""
MAX_PLANS = 1024


class Plans:
    """Of one pool."""

    def __init__(self, substrate: Substrate, offered: Capabilities, *, driver: str, settings: Settings) -> None:
        self._substrate = substrate
        self._offered = offered
        self._driver = driver
        self._settings = settings
        self._plans: dict[tuple[object, ...], Plan] = {}

    def remembered(self, spec: Spec, at_ns: int) -> Plan | None:
        """Return the plan that was found lately for a spec like this one."""
        plan = self._plans.get(_key(spec))
        return plan if plan is not None and at_ns - plan.made_ns < PLAN_AGE_NS else None

    async def find(self, spec: Spec) -> Plan:
        """Look at the image, and at local files if these stages have not been seen yet. Raises as `create` does."""
        network = spec.network or strictest_network(self._offered)
        check_offered(spec, network, self._offered, driver=self._driver)
        key = _key(spec)
        chain = await self._chain(spec, self._plans.get(key))
        if spec.network is None:
            spec = replace(spec, network=network)
        plan = Plan(
            spec=spec, chain=chain, kind=(chain.key, (spec.limits, network, spec.storage)), made_ns=now_ns(),
            weight_bytes=spec.limits.memory_bytes or self._settings.sandbox_bytes,
        )  # fmt: skip
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        self._plans[key] = plan
        return plan

    async def _chain(self, spec: Spec, old: Plan | None) -> Chain:
        if old is not None and old.chain.root == await self._substrate.image_key(spec.image):
            return old.chain
        return await chain_of(spec, self._substrate)


def _key(spec: Spec) -> tuple[object, ...]:
    # Stages by their identity: comparing them would take longer than all the rest, and the plan keeps them alive.
    return spec.image, id(spec.stages), spec.limits, spec.network, spec.storage, spec.user is None, spec.isolation
