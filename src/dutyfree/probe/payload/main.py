"""Finds the attempt that was asked for, runs it, and prints what it says as the last line."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

from dutyfree.probe.payload import (
    agent,
    bomb,
    device,
    hoard,
    inode,
    linger,
    look,
    meddle,
    mount,
    net,
    posture,
    state,
    strain,
    surface,
)

Attempt = Callable[..., dict[str, Any]]

ATTEMPTS: dict[str, Attempt] = {
    name: attempt
    for module in (agent, bomb, device, hoard, inode, linger, look, meddle, mount, net, posture, state, strain, surface)
    for name, attempt in module.ATTEMPTS.items()
}


def main() -> None:
    """`python3 payload.pyz NAME JSON`."""
    said = ATTEMPTS[sys.argv[1]](**json.loads(sys.argv[2]))
    sys.stdout.write("\n" + json.dumps(said) + "\n")
    sys.stdout.flush()
