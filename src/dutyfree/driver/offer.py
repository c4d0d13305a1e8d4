"""What a spec asks against what a substrate declares: `Unsupported` for the difference. For any driver."""

from __future__ import annotations

from dutyfree.core.contract import Capabilities
from dutyfree.core.egress import Egress
from dutyfree.core.errors import Unsupported
from dutyfree.core.spec import ISOLATION_ORDER, Spec


def check_offered(spec: Spec, offered: Capabilities, *, driver: str) -> None:
    """Raise for the first thing that is asked and not offered, with the driver's own note on it."""
    for limit in spec.limits.given():
        if limit not in offered.limits:
            raise _refusal("limits", f"limits.{limit} is not enforced", offered, driver)
    if isinstance(spec.network, Egress):
        if not offered.egress:
            raise _refusal("egress", "network Egress(...) is not offered", offered, driver)
    elif spec.network not in offered.networks:
        have = " or ".join(sorted(offered.networks))
        raise _refusal("networks", f"network {spec.network!r} is not offered, only {have}", offered, driver)
    if spec.storage not in offered.storages:
        raise _refusal("storages", f"storage {spec.storage!r} is not offered", offered, driver)
    if spec.user is not None and not offered.users:
        raise _refusal("users", "another user is not offered", offered, driver)
    order = ISOLATION_ORDER.index
    if spec.isolation is not None and order(spec.isolation) > order(offered.isolation):
        what = f"isolation {spec.isolation!r} is not offered, only {offered.isolation!r}"
        raise _refusal("isolation", what, offered, driver)


def _refusal(field: str, what: str, offered: Capabilities, driver: str) -> Unsupported:
    note = offered.notes.get(field)
    return Unsupported(f"{what}: {note}" if note else what, driver=driver)
