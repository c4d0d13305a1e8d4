"""Cancellation at every await of every call: nothing is left, and the sandbox goes on."""

import asyncio
import os
import random
import secrets
import shutil
from pathlib import Path

import pytest
from family import marked

import dutyfree

MOST_AWAITS = 500
"""No call suspends nearly as often; one that does is stuck."""


class CancelledAt:
    """Runs a coroutine inside the current task, and cancels that task when it suspends for the n-th time."""

    def __init__(self, work, n):
        self._work = work
        self._n = n
        self.reached = False

    def __await__(self):
        steps = self._work.__await__()
        count = 0
        send, value = steps.send, None
        while True:
            try:
                waited_for = send(value)
            except StopIteration as end:
                return end.value
            if count == self._n:
                self.reached = True
                asyncio.current_task().cancel()
            count += 1
            send, value = steps.send, None
            try:
                yield waited_for
            except BaseException as error:  # noqa: BLE001 (handed on to the work, as the loop would)
                send, value = steps.throw, error


async def cancel_everywhere(make_work, check):
    """`make_work` gives a fresh awaitable; `check(result or None)` looks after each cancellation. How many awaits there are."""
    for n in range(MOST_AWAITS):
        step = CancelledAt(make_work(), n)

        async def work(step=step):
            return await step

        task = asyncio.ensure_future(work())
        done = await asyncio.gather(task, return_exceptions=True)
        if not step.reached:
            await check(task.result())
            return n
        assert isinstance(done[0], asyncio.CancelledError), f"at await {n}: {done[0]!r}"
        await check(None)
    raise AssertionError("it suspends for ever")


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_create_can_be_cancelled_at_every_await(storage):
    async def main():
        async with dutyfree.connect("native") as substrate:
            if storage not in substrate.capabilities.storages:
                pytest.skip(f"{storage} storage: {substrate.capabilities.notes['storages']}: sudo make test")

            async def check(box):
                if box is not None:
                    await box.destroy()
                assert substrate._boxes == set()
                assert substrate._spawner._sandboxes == {}

            spec = dutyfree.Spec(storage=storage)
            assert await cancel_everywhere(lambda: substrate.create(spec), check) > 0

    asyncio.run(main())


def test_connect_can_be_cancelled_at_every_await():
    async def main():
        async def check(substrate):
            if substrate is not None:
                await substrate.close()

        assert await cancel_everywhere(lambda: dutyfree.connect("native"), check) > 0

    asyncio.run(main())


CALLS = {
    "run": lambda box, mark, tmp: box.run(["sh", "-c", "sleep 0.01; setsid sleep 0.01", mark]),
    "run-with-output": lambda box, mark, tmp: box.run(["head", "-c", "3000000", "/dev/zero", "--", *[]]),
    "write": lambda box, mark, tmp: box.write("/tmp/written", b"x" * 3_000_000),
    "read": lambda box, mark, tmp: box.read("/tmp/big"),
    "list": lambda box, mark, tmp: box.list("/usr/bin"),
    "upload": lambda box, mark, tmp: box.upload(tmp / "tree", "/tmp/uploaded"),
    "stat": lambda box, mark, tmp: box.stat("/tmp/big"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_call_can_be_cancelled_at_every_await_and_the_sandbox_goes_on(call, tmp_path):
    (tmp_path / "tree").mkdir()
    for number in range(20):
        (tmp_path / "tree" / str(number)).write_bytes(b"x" * 50_000)
    mark = f"cancelled{secrets.token_hex(8)}"

    async def main():
        async with dutyfree.connect("native") as substrate, substrate.create() as box:
            await box.write("/tmp/big", b"x" * 3_000_000)

            async def check(_):
                assert (await box.run(["echo", "still here"])).stdout == b"still here\n"
                assert marked(mark) == []

            assert await cancel_everywhere(lambda: CALLS[call](box, mark, tmp_path), check) > 0

    asyncio.run(main())


def test_download_can_be_cancelled_at_every_await_and_leaves_no_half(tmp_path):
    async def main():
        async with dutyfree.connect("native") as substrate, substrate.create() as box:
            await box.run("mkdir /tmp/d && for i in $(seq 20); do head -c 100000 /dev/zero >/tmp/d/$i; done")
            target = tmp_path / "out"

            def work():
                return box.download("/tmp/d", target)

            async def check(_):
                assert (await box.run(["true"])).ok
                # It may be whole when the cancellation came after its last byte; never a part, never a trace.
                if target.exists():
                    assert len(list(target.iterdir())) == 20
                    shutil.rmtree(target)
                assert list(tmp_path.iterdir()) == []

            await cancel_everywhere(work, check)

    asyncio.run(main())


def test_destroy_that_is_cancelled_still_destroys():
    async def main():
        async with dutyfree.connect("native") as substrate:
            for n in range(8):
                box = await substrate.create()
                step = CancelledAt(box.destroy(), n)

                async def work(step=step):
                    await step

                await asyncio.gather(asyncio.ensure_future(work()), return_exceptions=True)
                await box.destroy()
            assert substrate._boxes == set()

    asyncio.run(main())


@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_creates_cancelled_at_random_moments_leave_nothing(storage):
    chance = random.Random(7)

    async def main():
        async with dutyfree.connect("native") as substrate:
            if storage not in substrate.capabilities.storages:
                pytest.skip(f"{storage} storage: {substrate.capabilities.notes['storages']}: sudo make test")
            spec = dutyfree.Spec(storage=storage)
            async with substrate.create(spec):
                pass
            for _ in range(150):
                creates = [asyncio.ensure_future(substrate.create(spec)) for _ in range(2)]
                for create in creates:
                    asyncio.get_running_loop().call_later(chance.uniform(0, 0.012), create.cancel)
                for result in await asyncio.gather(*creates, return_exceptions=True):
                    if isinstance(result, dutyfree.Sandbox):
                        await result.destroy()
                    else:
                        assert isinstance(result, asyncio.CancelledError), repr(result)
            assert substrate._boxes == set()
            assert substrate._spawner._sandboxes == {}

    asyncio.run(main())


def disks_held():
    links = map(os.path.realpath, Path("/proc/self/fd").iterdir())
    return {link for link in links if "/disks/" in link}


def test_a_disk_whose_create_was_cancelled_is_closed_before_the_substrate_is(tmp_path, monkeypatch):
    """A size that was never asked for before: its thread has a filesystem to make while the loop comes to its end."""
    monkeypatch.setenv("DUTYFREE_HOME", str(tmp_path))

    async def main(ms):
        async with dutyfree.connect("native") as substrate:
            if "disk" not in substrate.capabilities.storages:
                pytest.skip(f"disk storage: {substrate.capabilities.notes['storages']}: sudo make test")
            await (await substrate.create()).destroy()
            spec = dutyfree.Spec(storage="disk", limits=dutyfree.Limits(disk_bytes=(64 + ms) << 20))
            create = asyncio.ensure_future(substrate.create(spec))
            await asyncio.sleep(ms / 1000)
            create.cancel()
            await asyncio.gather(create, return_exceptions=True)

    for ms in range(1, 9):
        asyncio.run(main(ms))
        assert disks_held() == set()
