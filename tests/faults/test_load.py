"""Many at once, in the wrong order, and with too little of everything."""

import asyncio
import os
import resource

import pytest

import dutyfree


def test_two_hundred_simultaneous_creates_all_work_and_are_all_different():
    async def main():
        async with dutyfree.connect("native") as substrate:
            boxes = await asyncio.gather(*(substrate.create() for _ in range(200)))
            assert len({box.id for box in boxes}) == 200
            outcomes = await asyncio.gather(*(box.run(["echo", box.id]) for box in boxes))
            assert [out.stdout.decode().strip() for out in outcomes] == [box.id for box in boxes]
            await asyncio.gather(*(box.destroy() for box in boxes))
            assert substrate._spawner._sandboxes == {}

    asyncio.run(main())


def test_closing_during_creates_ends_every_one_of_them():
    async def main():
        substrate = await dutyfree.connect("native")
        async with substrate.create():
            pass
        creates = [asyncio.ensure_future(substrate.create()) for _ in range(32)]
        for _ in range(3):
            await asyncio.sleep(0)
        await substrate.close()
        for result in await asyncio.gather(*creates, return_exceptions=True):
            if isinstance(result, BaseException):
                assert isinstance(result, dutyfree.DutyfreeError), repr(result)
            else:
                await result.destroy()

    asyncio.run(main())


def test_destroying_twice_at_once_and_again_later_is_fine():
    async def main():
        async with dutyfree.connect("native") as substrate:
            box = await substrate.create()
            await asyncio.gather(*(box.destroy() for _ in range(5)))
            await box.destroy()
            with pytest.raises(dutyfree.DutyfreeError):
                await box.run(["true"])

    asyncio.run(main())


def test_destroying_during_a_command_gives_its_caller_sandbox_lost():
    async def main():
        async with dutyfree.connect("native") as substrate:
            box = await substrate.create()
            pending = asyncio.create_task(box.run(["sleep", "1000"]))
            await asyncio.sleep(0)
            await box.destroy()
            with pytest.raises(dutyfree.SandboxLost):
                await pending

    asyncio.run(main())


@pytest.fixture
def few_descriptors():
    """Lowers how many files this process may open to what it has, and a few more."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)

    def lower(spare):
        highest = max(map(int, os.listdir("/proc/self/fd")))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1 + spare, hard))

    yield lower, lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("spare", range(4))
def test_running_out_of_descriptors_is_a_clear_error_and_passes(few_descriptors, spare):
    lower, restore = few_descriptors

    async def main():
        async with dutyfree.connect("native") as substrate:
            async with substrate.create():
                pass
            lower(spare)
            boxes = []
            error = None
            while error is None:
                try:
                    boxes.append(await substrate.create())
                except dutyfree.DutyfreeError as raised:
                    error = raised
            assert "Too many open files" in str(error)
            for box in boxes:
                assert (await box.run(["echo", "here"])).stdout == b"here\n"
                await box.destroy()
            restore()
            async with substrate.create() as box:
                assert (await box.run(["echo", "again"])).stdout == b"again\n"

    asyncio.run(main())


def test_running_out_of_descriptors_while_connecting_is_a_clear_error(few_descriptors):
    lower, restore = few_descriptors

    async def main():
        for spare in range(6):
            lower(spare)
            try:
                with pytest.raises(dutyfree.DutyfreeError) as caught:
                    async with dutyfree.connect("native"):
                        raise dutyfree.Unavailable("there were enough: Too many open files")
            finally:
                restore()
            assert "Too many open files" in str(caught.value)
        async with dutyfree.connect("native") as substrate, substrate.create() as box:
            assert (await box.run(["true"])).ok

    asyncio.run(main())
