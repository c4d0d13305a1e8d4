"""Many commands in one sandbox, many sandboxes in one substrate."""

from __future__ import annotations

import asyncio

from dutyfree.testing.base import Suite


class ConcurrencySuite(Suite):
    async def test_many_commands_run_at_once_in_one_sandbox(self) -> None:
        async with self.box() as box:
            outcomes = await asyncio.gather(*(box.run(f"echo {n}; exit {n}") for n in range(30)))
        assert [(one.stdout, one.exit_code) for one in outcomes] == [(f"{n}\n".encode(), n) for n in range(30)]

    async def test_commands_of_one_sandbox_do_not_wait_for_each_other(self) -> None:
        async with self.box() as box:
            place = self.scratch(box)
            await box.mkdir(place)
            meet = "touch {0}/{1}; while [ ! -e {0}/{2} ]; do :; done"
            both = await asyncio.gather(
                box.run(meet.format(place, "a", "b"), timeout_s=60), box.run(meet.format(place, "b", "a"), timeout_s=60)
            )
        assert [one.ending for one in both] == ["exit", "exit"]

    async def test_a_command_that_floods_does_not_hold_others_up(self) -> None:
        async with self.box() as box:
            flood = asyncio.create_task(box.run(["yes"], output_limit_bytes=1000, timeout_s=2))
            assert (await box.run(["true"], timeout_s=60)).ok
            assert (await flood).ending == "timeout"

    async def test_files_and_commands_work_at_once(self) -> None:
        async with self.box() as box:
            place = self.scratch(box)
            data = [bytes([n]) * 10_000 for n in range(20)]
            await asyncio.gather(*(box.write(f"{place}/{n}", one) for n, one in enumerate(data)))
            read = await asyncio.gather(*(box.read(f"{place}/{n}") for n in range(20)), box.run(["true"]))
        assert read[:20] == data

    async def test_many_sandboxes_live_at_once(self) -> None:
        boxes = await asyncio.gather(*(self.box(env={"N": str(n)}) for n in range(12)))
        try:
            assert len({box.id for box in boxes}) == 12
            outcomes = await asyncio.gather(*(box.run(["sh", "-c", "echo $N"]) for box in boxes))
        finally:
            await asyncio.gather(*(box.destroy() for box in boxes))
        assert [one.stdout for one in outcomes] == [f"{n}\n".encode() for n in range(12)]

    async def test_one_sandboxs_end_does_not_touch_another(self) -> None:
        async with self.box() as stays:
            waiting = asyncio.create_task(stays.run(["sleep", "1"]))
            async with self.box() as goes:
                assert (await goes.run(["true"])).ok
            assert (await waiting).ok
            assert (await stays.run(["true"])).ok
