"""Saved and restored state: snapshots, forks and resets are of files, exact, and of nobody else's business."""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Awaitable, Callable

import pytest

from dutyfree.core.contract import Sandbox
from dutyfree.core.errors import Misuse, SandboxLost
from dutyfree.testing.base import NotOffered, Suite, declines, exists, is_gone, shell_of
from dutyfree.testing.lifecycle import is_lost

WRITE = """
set -e
mkdir -p "$0/deep/er" && cd "$0"
echo content >file && chmod 640 file && touch -d @1000000000 file
ln file twin && ln -s file link && ln -s /nowhere dangling && mkfifo fifo
truncate -s 1G sparse && printf x >>sparse
: >'a name with
a line break' && mkdir locked && chmod 711 locked && touch -d @1100000000 deep/er
"""
SHOW = """
cd "$0" && find . -printf '%p %y %m %U:%G %s %l %Ts\\n' | grep -v '^. d' | sort && cat file && tail -c 2 sparse
test file -ef twin && echo same
"""


async def able(suite: Suite, ability: str, use: Callable[[Sandbox], Awaitable[object]], **fields: object) -> Sandbox:
    """A sandbox of the suite that has the ability; or, where it is not offered, the refusal."""
    box = await suite.box(**fields)
    if not getattr(box.capabilities, ability):
        try:
            await declines(lambda: use(box))
        finally:
            await box.destroy()
    suite.isolated()  # these tests remove and overwrite /etc and /home: never the machine's own
    return box


class SnapshotSuite(Suite):
    async def saving(self, **fields: object) -> Sandbox:
        """A sandbox that can be saved; or the refusal."""
        return await able(self, "snapshot", lambda box: box.snapshot(), **fields)

    async def test_a_snapshot_starts_sandboxes_with_the_files_as_they_were(self) -> None:
        box = await self.saving()
        place = f"{self.scratch(box)}/state"
        assert (await box.run(["bash", "-c", WRITE, place])).ok
        shown = await box.run(["bash", "-c", SHOW, place])
        assert shown.ok
        saved = await box.snapshot()
        async with self.box(image=saved.image) as later:
            again = await later.run(["bash", "-c", SHOW, place])
        assert again.stdout == shown.stdout
        await saved.remove()
        await box.destroy()

    async def test_a_snapshot_stays_as_it_is_when_its_sandbox_goes_on(self) -> None:
        box = await self.saving()
        path = f"{self.scratch(box)}/file"
        await box.write(path, b"then")
        saved = await box.snapshot()
        await box.write(path, b"now")
        await box.write(f"{path}2", b"now")
        async with self.box(image=saved.image) as later:
            assert await later.read(path) == b"then"
            assert not await exists(later, f"{path}2")
        await box.destroy()
        async with self.box(image=saved.image) as later:
            assert await later.read(path) == b"then"

    async def test_what_was_removed_stays_removed(self) -> None:
        box = await self.saving()
        assert (await box.run("rm -r /etc/passwd /srv /home && mkdir /home && echo x >/home/only")).ok
        saved = await box.snapshot()
        async with self.box(image=saved.image) as later:
            assert not await exists(later, "/etc/passwd")
            assert not await exists(later, "/srv")
            assert [entry.name for entry in await later.list("/home")] == ["only"]
        await box.destroy()

    async def test_what_runs_goes_on_after_a_snapshot(self) -> None:
        box = await self.saving()
        shell = await shell_of(box)
        await shell.run("kept=value")
        running = asyncio.create_task(box.run("sleep 0.3; echo done"))
        await box.snapshot()
        assert (await running).stdout == b"done\n"
        assert (await shell.run("echo $kept")).stdout == b"value\n"
        await box.destroy()

    async def test_a_snapshot_of_a_snapshot_holds_both(self) -> None:
        box = await self.saving()
        await box.write(f"{self.scratch(box)}/one", b"1")
        first = await box.snapshot()
        async with self.box(image=first.image) as middle:
            await middle.write(f"{self.scratch(middle)}/two", b"2")
            second = await middle.snapshot()
        await first.remove()
        async with self.box(image=second.image) as last:
            assert await last.read(f"{self.scratch(last)}/one") == b"1"
            assert await last.read(f"{self.scratch(last)}/two") == b"2"
        await box.destroy()

    async def test_a_key_names_a_snapshot_and_the_first_one_is_kept(self) -> None:
        box = await self.saving()
        key = f"suite-{secrets.token_hex(8)}"
        path = f"{self.scratch(box)}/file"
        await box.write(path, b"first")
        saved = await box.snapshot(key)
        try:
            assert (saved.key, saved.image) == (key, f"snapshot:{key}")
            assert await self.substrate.holds(saved.image)
            await box.write(path, b"second")
            assert (await box.snapshot(key)).image == saved.image
            async with self.connect() as other, other.create(self.spec(image=saved.image)) as later:
                assert await later.read(path) == b"first"
        finally:
            await saved.remove()
        assert not await self.substrate.holds(saved.image)
        await box.destroy()

    async def test_a_removed_snapshot_starts_nothing_and_disturbs_nobody(self) -> None:
        box = await self.saving()
        path = f"{self.scratch(box)}/file"
        await box.write(path, b"x" * 100_000)
        saved = await box.snapshot()
        async with self.box(image=saved.image) as later:
            await saved.remove()
            await saved.remove()
            assert await later.read(path) == b"x" * 100_000
            with pytest.raises(Misuse, match="image"):
                await self.box(image=saved.image)
        await box.destroy()

    async def test_a_key_that_is_none_is_misuse(self) -> None:
        box = await self.saving()
        for key in ("", "../up", "a/b", "x" * 1000, "a\0b"):
            with pytest.raises(Misuse, match="key"):
                await box.snapshot(key)
        await box.destroy()
        with pytest.raises((SandboxLost, Misuse)):
            await box.snapshot()


class ForkSuite(Suite):
    async def forking(self, **fields: object) -> Sandbox:
        """A sandbox that can be forked; or the refusal."""
        return await able(self, "fork", lambda box: box.fork(1), **fields)

    async def test_forks_start_from_the_present_and_see_nothing_of_each_other(self) -> None:
        box = await self.forking()
        place = self.scratch(box)
        await box.write(f"{place}/shared", b"from before")
        first, second = await box.fork(2)
        async with first as one, second as two:
            await one.write(f"{place}/shared", b"one")
            await two.write(f"{place}/own", b"two")
            await box.write(f"{place}/parent", b"parent")
            assert await two.read(f"{place}/shared") == b"from before"
            assert await box.read(f"{place}/shared") == b"from before"
            assert not await exists(one, f"{place}/own")
            assert not await exists(box, f"{place}/own")
            assert not await exists(one, f"{place}/parent")
            assert len({box.id, one.id, two.id}) == 3
        await box.destroy()

    async def test_forks_outlive_what_they_were_forked_from(self) -> None:
        box = await self.forking()
        path = f"{self.scratch(box)}/file"
        await box.write(path, b"kept")
        one, two = [await pending for pending in await box.fork(2)]
        await box.destroy()
        await one.destroy()
        assert await two.read(path) == b"kept"
        await two.destroy()

    async def test_a_fork_can_be_forked(self) -> None:
        box = await self.forking()
        place = self.scratch(box)
        line = [box]
        for depth in range(6):
            await line[-1].write(f"{place}/{depth}", b"%d" % depth)
            line.append(await (await line[-1].fork(1))[0])
        assert [await line[-1].read(f"{place}/{depth}") for depth in range(6)] == [b"%d" % d for d in range(6)]
        for one in line:
            await one.destroy()

    async def test_a_fork_of_an_untouched_sandbox_is_like_it(self) -> None:
        box = await self.forking()
        async with (await box.fork(1))[0] as one:
            show = "ls -lan --time-style=+%s / /etc"
            assert (await one.run(show)).stdout.count(b"\n") == (await box.run(show)).stdout.count(b"\n")
            await one.write("/etc/only-here", b"")
            assert not await exists(box, "/etc/only-here")
        await box.destroy()

    async def test_a_number_of_forks_that_makes_no_sense_is_misuse(self) -> None:
        box = await self.forking()
        for n in (0, -1, True, 1.5, "2", 1 << 40):
            with pytest.raises(Misuse, match="n"):
                await box.fork(n)  # type: ignore[arg-type]
        await box.destroy()


class ResetSuite(Suite):
    async def resetting(self, **fields: object) -> Sandbox:
        """A sandbox that can be reset; or the refusal."""
        return await able(self, "reset", lambda box: box.reset(), **fields)

    async def test_a_reset_brings_back_the_files_of_the_start(self) -> None:
        box = await self.resetting()
        show = (
            "cat /etc/passwd; find / -xdev -newermt '2100-01-01' 2>/dev/null; ls -la /etc /root /tmp /var/tmp /dev/shm"
        )
        before = (await box.run(show)).stdout
        change = "rm -r /srv; echo planted | tee /etc/passwd /root/.bashrc /tmp/x /var/tmp/x /dev/shm/x; chmod 700 /etc"
        assert (await box.run(change)).exit_code is not None
        assert (await box.run(show)).stdout != before
        await box.reset()
        after = (await box.run(show)).stdout
        assert b"planted" not in after
        assert [line.split()[:1] + line.split()[8:] for line in after.splitlines()] == [
            line.split()[:1] + line.split()[8:] for line in before.splitlines()
        ]
        await box.destroy()

    async def test_a_reset_ends_every_process(self) -> None:
        box = await self.resetting()
        left = await box.run("setsid sleep 1000 >/dev/null 2>&1 & echo $!", background=True)
        running = asyncio.create_task(box.run(["sleep", "1000"]))
        assert (await box.run(["true"])).ok
        await box.reset()
        with pytest.raises(SandboxLost):
            await running
        assert await is_gone(box, int(left.stdout))
        await box.destroy()

    async def test_a_reset_ends_shells_and_the_sandbox_goes_on(self) -> None:
        box = await self.resetting()
        shell = await shell_of(box)
        assert (await shell.run("cd /etc; export A=1")).ok
        await box.reset()
        with pytest.raises((SandboxLost, Misuse)):
            await shell.run("pwd")
        assert not shell.alive
        await shell.close()
        fresh = await box.shell()
        assert (await fresh.run("echo ${A-unset}")).stdout == b"unset\n"
        await box.destroy()

    async def test_a_reset_keeps_what_the_sandbox_is_and_tells_how_long_it_took(self) -> None:
        box = await self.resetting(env={"KEPT": "yes"}, cwd="/usr")
        before = box.id, box.spec
        await box.reset()
        assert (box.id, box.spec) == before
        assert (await box.run("echo $KEPT; pwd")).stdout == b"yes\n/usr\n"
        assert box.timeline.total_ns("reset") > 0
        await box.destroy()

    async def test_a_sandbox_that_began_with_a_snapshot_is_reset_to_that(self) -> None:
        box = await self.resetting()
        if not box.capabilities.snapshot:
            await box.destroy()
            raise NotOffered
        path = f"{self.scratch(box)}/file"
        await box.write(path, b"saved")
        saved = await box.snapshot()
        async with self.box(image=saved.image) as later:
            await saved.remove()
            for content in (b"one", b"two"):
                await later.write(path, content)
                await later.reset()
                assert await later.read(path) == b"saved"
        await box.reset()
        assert not await exists(box, path)
        await box.destroy()

    async def test_resets_of_one_sandbox_take_their_turns(self) -> None:
        box = await self.resetting()
        await asyncio.gather(*(box.reset() for _ in range(4)))
        assert (await box.run(["true"])).ok
        await asyncio.gather(box.reset(), box.destroy(), return_exceptions=True)
        assert await is_lost(box)

    async def test_a_sandbox_that_is_gone_is_not_brought_back_by_a_reset(self) -> None:
        box = await self.resetting()
        await box.destroy()
        with pytest.raises((SandboxLost, Misuse)):
            await box.reset()

    async def test_a_lifetime_counts_from_the_creation_and_not_from_a_reset(self) -> None:
        box = await self.resetting(lifetime_s=1.0)
        await asyncio.sleep(0.6)  # the passing of time itself is what is tested
        await box.reset()
        with pytest.raises(SandboxLost):
            await box.run(["sleep", "60"])
        assert await is_lost(box)
        await box.destroy()
