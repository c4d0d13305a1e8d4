"""The spawner or an agent dies, stops or talks nonsense: callers learn of it, and nothing is left."""

import asyncio
import os
import secrets
import signal

import pytest
from family import agent_of, cgroups_of, descendants, marked, survivors, watch

import dutyfree


def spawner_of(substrate):
    return substrate._spawner._process.pid


async def running(box, **options):
    """A command that is certainly running, and the mark it can be found by."""
    mark = f"running{secrets.token_hex(8)}"
    process = await box.start(["sh", "-c", "echo up; read line; exec sleep 1000", mark], stdin=None, **options)
    async for _, chunk in process:
        assert chunk == b"up\n"
        break
    return process, mark


async def sweep():
    """What a killed spawner could not remove goes at the next start."""
    async with dutyfree.connect("native"):
        pass


def test_killing_the_spawner_gives_sandbox_lost_to_everybody_and_leaves_nothing():
    async def main():
        async with dutyfree.connect("native") as substrate:
            boxes = [await substrate.create() for _ in range(4)]
            pending = [asyncio.create_task(box.run(["sleep", "1000"])) for box in boxes]
            await asyncio.gather(*(running(box) for box in boxes))
            spawner = spawner_of(substrate)
            family = watch(descendants(os.getpid()))
            os.kill(spawner, signal.SIGKILL)
            for task in pending:
                with pytest.raises(dutyfree.SandboxLost):
                    await task
            for box in boxes:
                with pytest.raises(dutyfree.SandboxLost):
                    await box.run(["true"])
                await box.destroy()
        assert survivors(family) == []
        await sweep()
        assert cgroups_of(spawner) == []

    asyncio.run(main())


def test_creating_after_the_spawners_death_fails_at_once_every_time():
    async def main():
        async with dutyfree.connect("native") as substrate:
            os.kill(spawner_of(substrate), signal.SIGKILL)
            for _ in range(3):
                async with asyncio.timeout(10):
                    with pytest.raises(dutyfree.DutyfreeError):
                        await substrate.create()
        await sweep()

    asyncio.run(main())


def test_creates_under_way_when_the_spawner_dies_fail_and_leave_nothing():
    async def main():
        async with dutyfree.connect("native") as substrate:
            async with substrate.create():
                pass  # the image is known: what follows waits for the spawner alone
            creates = [asyncio.ensure_future(substrate.create()) for _ in range(32)]
            await asyncio.sleep(0)
            os.kill(spawner_of(substrate), signal.SIGKILL)
            results = await asyncio.gather(*creates, return_exceptions=True)
            for result in results:
                if isinstance(result, BaseException):
                    assert isinstance(result, dutyfree.DutyfreeError), repr(result)
                else:
                    await result.destroy()
        await sweep()

    asyncio.run(main())


def test_killing_the_agent_gives_sandbox_lost_and_its_siblings_live():
    async def main():
        async with dutyfree.connect("native") as substrate, substrate.create() as box, substrate.create() as sibling:
            process, mark = await running(box)
            pending = asyncio.create_task(box.run(["sleep", "1000"]))
            await asyncio.sleep(0)
            agent = agent_of(mark)
            tree = watch([agent, *descendants(agent)])
            os.kill(agent, signal.SIGKILL)
            for waiting in (process.wait(), pending, box.read("/etc/hostname"), box.run(["true"])):
                with pytest.raises(dutyfree.SandboxLost):
                    await waiting
            assert (await sibling.run(["echo", "here"])).stdout == b"here\n"
            assert survivors(tree) == []

    asyncio.run(main())


def test_a_stopped_agent_does_not_stop_the_deadline():
    async def main():
        async with dutyfree.connect("native") as substrate:
            box = await substrate.create()
            _, mark = await running(box)
            agent = agent_of(mark)
            tree = watch([agent, *descendants(agent)])
            os.kill(agent, signal.SIGSTOP)
            async with asyncio.timeout(30):
                try:
                    outcome = await box.run(["sleep", "1000"], timeout_s=0.2)
                    assert outcome.ending == "timeout"
                except dutyfree.SandboxLost:
                    pass  # it was ended at its deadline, and says so
            await box.destroy()
            assert survivors(tree) == []
            assert marked(mark) == []

    asyncio.run(main())


def test_a_stopped_agent_does_not_stop_destroy():
    async def main():
        async with dutyfree.connect("native") as substrate:
            box = await substrate.create()
            _, mark = await running(box)
            os.kill(agent_of(mark), signal.SIGSTOP)
            async with asyncio.timeout(30):
                await box.destroy()
            assert marked(mark) == []

    asyncio.run(main())


@pytest.mark.parametrize(
    "junk", [b"\xff" * 64, b"\0" * 4096, b"GET / HTTP/1.1\r\n\r\n", b"\1"], ids=["ones", "zeros", "http", "end"]
)
def test_garbage_to_the_agent_ends_that_sandbox_only(junk):
    async def main():
        async with dutyfree.connect("native") as substrate, substrate.create() as box, substrate.create() as sibling:
            pending = asyncio.create_task(box.run(["sleep", "1000"]))
            await asyncio.sleep(0)
            box.link.send(junk)
            if len(junk) == 1:
                await box.destroy()
            async with asyncio.timeout(30):
                with pytest.raises(dutyfree.SandboxLost):
                    await pending
            assert (await sibling.run(["echo", "here"])).stdout == b"here\n"

    asyncio.run(main())
