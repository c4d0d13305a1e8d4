"""Fixtures: an account at the server of `dutyfree.testing.modal`, in the environment, where the driver looks for one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest

from dutyfree.substrates.poll import poll
from dutyfree.substrates.registry import find
from dutyfree.testing.base import PATIENCE_S

if TYPE_CHECKING:
    from dutyfree.testing.modal import ModalServer

IMAGE = "debian:12"
"""What the server's registry knows; this machine's own programs stand for it."""


@pytest.fixture(scope="module")
def modal_vendor() -> Iterator[ModalServer]:
    """The server, or a skip that says what is missing."""
    modal = pytest.importorskip(
        "modal", reason="modal: the SDK is not installed; enable: pip install 'dutyfree[modal]'"
    )
    native = find("native")[0].probe()
    if not native.available:
        pytest.skip(f"modal: its commands would run in native sandboxes: {native.reason}; enable: {native.enable}")
    from dutyfree.testing.modal import modal_server  # noqa: PLC0415 - needs the SDK

    with modal_server({IMAGE: "host"}) as server, pytest.MonkeyPatch.context() as patch:
        for name, value in server.environ.items():
            patch.setenv(name, value)
        # Connections that are dropped when they are idle, and made again, would look like something a test left behind.
        patch.setenv("MODAL_SANDBOX_CHANNEL_IDLE_TIMEOUT", "3600")
        # The SDK's own thread is started by its first call, and stays.
        modal.Client.from_credentials("nobody", "nothing").__exit__(None, None, None)
        yield server
        assert server.live == []


@pytest.fixture
def modal_settles() -> Iterator[None]:
    """The SDK and the server close connections on threads of their own: a test is over when they have."""
    before = _descriptors()
    yield

    async def settled() -> bool | None:
        return True if _descriptors() <= before else None

    asyncio.run(poll(settled, deadline_s=PATIENCE_S))


def _descriptors() -> set[str]:
    found = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):  # the one that lists the directory
            found.add(f"{name} {os.readlink(f'/proc/self/fd/{name}')}")
    return found
