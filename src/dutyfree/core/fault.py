"""Named points where a test lets something fail: `at("dutyfree.warm.reset", box.id)`.

It is Python's own audit event: nothing happens (17 ns) unless the process has a hook, which only tests install, in
processes of their own. What the hook raises comes out of the call, as if the step behind it had failed. Decides
nothing by itself.
"""

from __future__ import annotations

import sys
from typing import Final, Literal

Stands = Literal["os", "driver", "nothing"]
"""What may be raised there: an OSError · an error of the substrate beneath · nothing, so that only processes can fail."""

POINTS: Final[dict[str, Stands]] = {
    "dutyfree.agent.hello": "driver",
    "dutyfree.agent.send": "os",
    "dutyfree.agent.receive": "os",
    "dutyfree.store.build": "os",
    "dutyfree.store.write": "os",
    "dutyfree.store.sync": "os",
    "dutyfree.store.publish": "os",
    "dutyfree.store.save": "os",
    "dutyfree.store.name": "os",
    "dutyfree.store.retire": "os",
    "dutyfree.store.sweep": "os",
    "dutyfree.warm.create": "driver",
    "dutyfree.warm.refill": "nothing",
    "dutyfree.warm.hand": "nothing",
    "dutyfree.warm.complete": "driver",
    "dutyfree.warm.reset": "driver",
    "dutyfree.warm.put": "nothing",
    "dutyfree.warm.end": "nothing",
    "dutyfree.warm.build": "driver",
    "dutyfree.warm.keep": "driver",
    "dutyfree.warm.note": "os",
}
"""All there are, in the order of the rooms; each is passed in one place."""

at = sys.audit
"""The step that follows may fail here. Arguments tell a hook what it concerns."""
