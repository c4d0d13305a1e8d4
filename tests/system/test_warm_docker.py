"""`warm:docker`: the same stages, kept as committed images; what waits is handed out without the engine."""

import asyncio

import pytest

from dutyfree import Commands, Files, Spec, StageFailed
from dutyfree.warm import Settings, open_pool

pytestmark = pytest.mark.slow("container engines and runtimes")

STAGES = (
    Files(files={"/srv/hello": b"hello\n"}),
    Commands(commands=["cat hello hello > twice"], cwd="/srv"),
)


@pytest.mark.usefixtures("bench")
def test_stages_become_images_of_the_engine_and_sandboxes_wait_at_them(docker_engine, tmp_path):
    async def main():
        spec = Spec(image="bench", stages=STAGES)
        settings = Settings(demand=False, refill=1)
        async with open_pool(f"docker?socket={docker_engine}", settings=settings) as pool:
            steps = []
            await pool.build(spec, steps.append)
            try:
                assert await pool.holds(f"snapshot:{steps[-1].key}")
                await pool.set_targets([(spec, 1)])
                await pool.settled()
                async with pool.create(spec) as box:
                    assert box.origin == "idle"
                    assert await box.read("/srv/twice") == b"hello\nhello\n"
                broken = Spec(image="bench", stages=(*STAGES, Commands(commands=["exit 7"])))
                with pytest.raises(StageFailed, match="exited with 7"):
                    await pool.create(broken)
            finally:
                await pool.set_targets([])
                for step in reversed(steps):
                    await pool.remove_stage(step.key)
            assert not await pool.holds(f"snapshot:{steps[0].key}")

    asyncio.run(main())
