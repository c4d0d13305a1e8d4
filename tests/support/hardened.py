"""What the `hardened` profile of a container substrate promises, whoever runs its containers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from dutyfree.core.contract import Substrate
from dutyfree.core.errors import Unsupported
from dutyfree.core.pending import Pending
from dutyfree.core.spec import Spec


def check_hardened(connect: Callable[[], Pending[Substrate]]) -> None:
    """Nothing inside can write the root or gain privileges, and what is meant to work works."""
    asyncio.run(_check(connect))


async def _check(connect: Callable[[], Pending[Substrate]]) -> None:
    async with connect() as substrate:
        async with substrate.create(Spec(image="bench")) as box:
            assert b"Read-only" in (await box.run("touch /etc/x")).stderr
            assert (await box.run("touch /tmp/x ~/x /run/x && echo fine")).stdout == b"fine\n"
            status = (await box.run(["cat", "/proc/self/status"])).text()
            assert "NoNewPrivs:\t1" in status
            assert "CapBnd:\t00000000000000e0" in status, "KILL, SETGID, SETUID"
            assert (await box.run(["id", "-u"], user="65534")).stdout == b"65534\n"
        with pytest.raises(Unsupported, match="storage"):
            await substrate.create(Spec(image="bench", storage="disk"))
