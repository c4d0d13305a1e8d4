"""Saved states: snapshots that others start from, forks, and a reset that leaves nothing of what was."""

from __future__ import annotations

import asyncio
import secrets

import pytest

from dutyfree.core.contract import Sandbox, Snapshot
from dutyfree.core.errors import Misuse, SandboxLost
from dutyfree.testing.base import NotOffered, Suite, declines, exists


async def snapshot_of(box: Sandbox, key: str | None = None) -> Snapshot:
    """A snapshot, or the refusal."""
    if not box.capabilities.snapshot:
        await declines(lambda: box.snapshot(key))
    return await box.snapshot(key)


async def resets(box: Sandbox) -> None:
    """Go on only if the substrate resets."""
    if not box.capabilities.reset:
        await declines(box.reset)


class StateSuite(Suite):
    async def test_a_sandbox_starts_from_a_snapshot_as_its_files_were(self) -> None:
        async with self.box() as box:
            await box.write(f"{self.scratch(box)}/saved", b"before", mode=0o640)
            snapshot = await snapshot_of(box)
            await box.write(f"{self.scratch(box)}/saved", b"after")
            async with self.box(image=snapshot.image) as other:
                assert await other.read(f"{self.scratch(other)}/saved") == b"before"
                assert (await other.stat(f"{self.scratch(other)}/saved")).mode == 0o640
                assert (await other.run("pwd; echo $HOME")).stdout == (await box.run("pwd; echo $HOME")).stdout

    async def test_processes_go_on_after_a_snapshot(self) -> None:
        async with self.box() as box:
            await box.run("sleep 60 >/dev/null 2>&1 & echo $! >/tmp/pid", background=True)
            snapshot = await snapshot_of(box)
            assert (await box.run("kill -0 $(cat /tmp/pid)")).ok
            await snapshot.remove()

    async def test_a_key_that_is_there_is_kept_and_found_until_it_is_removed(self) -> None:
        key = f"contract-{secrets.token_hex(8)}"
        async with self.box() as box:
            await box.write("/root/first", b"")
            snapshot = await snapshot_of(box, key)
            try:
                await box.write("/root/second", b"")
                again = await box.snapshot(key)
                assert (again.key, again.image) == (snapshot.key, snapshot.image) == (key, f"snapshot:{key}")
                assert await self.substrate.holds(snapshot.image)
                async with self.box(image=again.image) as other:
                    assert await exists(other, "/root/first")
                    assert not await exists(other, "/root/second")
                    await snapshot.remove()
                    assert await exists(other, "/root/first"), "it is not disturbed"
            finally:
                await snapshot.remove()
            assert not await self.substrate.holds(snapshot.image)
            with pytest.raises(Misuse, match="image"):
                await self.box(image=snapshot.image)

    async def test_forks_start_from_the_present_state_and_do_not_share_what_comes_after(self) -> None:
        async with self.box() as box:
            if not box.capabilities.fork:
                await declines(lambda: box.fork(1))
            await box.write("/root/shared", b"1")
            children = await asyncio.gather(*await box.fork(2))
            try:
                for number, child in enumerate(children):
                    assert await child.read("/root/shared") == b"1"
                    await child.write(f"/root/own-{number}", b"")
                assert not await exists(children[0], "/root/own-1")
                assert not await exists(box, "/root/own-0")
            finally:
                await asyncio.gather(*(child.destroy() for child in children))

    async def test_a_fork_that_is_never_awaited_costs_nothing_after_the_end(self) -> None:
        async with self.box() as box:
            if not box.capabilities.fork:
                await declines(lambda: box.fork(1))
            used, unused = await box.fork(2)
            unused.close()
            async with used as child:
                assert (await child.run(["true"])).ok

    async def test_a_number_of_forks_that_makes_no_sense_is_misuse(self) -> None:
        async with self.box() as box:
            if not box.capabilities.fork:
                raise NotOffered
            for n in (0, -1, 1.5, True):
                with pytest.raises(Misuse, match="n"):
                    await box.fork(n)  # type: ignore[arg-type]

    async def test_a_reset_leaves_nothing_of_what_was(self) -> None:
        async with self.box(env={"KEPT": "yes"}) as box:
            await resets(box)
            name = box.id
            await box.run(
                "sleep 60 >/dev/null 2>&1 & rm -rf /usr/share/doc; touch /root/x /tmp/y /dev/shm/z", background=True
            )
            await box.reset()
            assert box.id == name
            assert (await box.run("ls /root/x /tmp/y /dev/shm/z; ls -d /usr/share/doc")).stdout == b"/usr/share/doc\n"
            assert (await box.run("pgrep -x sleep; echo $KEPT")).stdout == b"yes\n"
            assert "reset" in [span.name for span in box.timeline.spans]

    async def test_a_sandbox_can_be_reset_again_and_destroyed(self) -> None:
        async with self.box() as box:
            await resets(box)
            for _ in range(2):
                await box.write("/root/x", b"")
                await box.reset()
                assert not await exists(box, "/root/x")
        assert [span.name for span in box.timeline.spans].count("destroy") == 1

    async def test_what_was_destroyed_is_not_brought_back(self) -> None:
        async with self.box() as box:
            await resets(box)
        with pytest.raises((SandboxLost, Misuse)):
            await box.reset()
