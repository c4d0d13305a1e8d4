"""Few descriptors: the soft limit is raised, and what is left is `Saturated`, never a bare OSError."""

import subprocess
import sys

import pytest

from dutyfree.substrates.registry import find

CROWD = """
import asyncio, resource, sys, dutyfree
soft, hard = map(int, sys.argv[2:])
resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
async def main():
    async with dutyfree.connect(sys.argv[1]) as substrate:
        made = await asyncio.gather(*(substrate.create() for _ in range(100)), return_exceptions=True)
        boxes = [one for one in made if not isinstance(one, BaseException)]
        running = [box.run(["cat"], stdin="in") for box in boxes for _ in range(2)]
        ran = await asyncio.gather(*running, return_exceptions=True)
        failed = [one for one in (*made, *ran) if isinstance(one, BaseException)]
        print(len(failed) > 0, {type(one).__name__ for one in failed} <= {"Saturated"}, failed[:1])
        for box in boxes:
            await box.destroy()
        async with substrate.create() as box:
            print((await box.run("echo again")).text())
asyncio.run(main())
"""


def crowd(name: str, soft: int, hard: int) -> list[str]:
    if not find(name)[0].probe().available:
        pytest.skip(f"needs the {name} substrate; see `dutyfree doctor`")
    argv = [sys.executable, "-c", CROWD, name, str(soft), str(hard)]
    done = subprocess.run(argv, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.parametrize("name", ["native", "host"])
def test_the_soft_limit_is_raised_to_the_hard_one(name):
    assert crowd(name, 90, 4096) == ["False", "True", "[]", "again"]


@pytest.mark.parametrize("name", ["native", "host"])
def test_what_is_left_is_saturated_and_passes(name):
    answer = crowd(name, 90, 90)
    assert (answer[:2], answer[-1]) == (["True", "True"], "again")
    assert "Saturated" in answer[2]
