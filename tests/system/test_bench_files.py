"""The bench image, as programs in it find it."""

import asyncio
from contextlib import closing

import pytest

from dutyfree import Spec, connect
from dutyfree.image.bench import INSTALL
from dutyfree.image.resolve import resolve
from dutyfree.image.store import Store

# Bytecode that Python uses without reading its source again carries no flag, and the source's own time.
COUNT = """
import glob, importlib.util, os, struct
found = {"used as it is": 0, "source read again": 0, "out of date": 0}
for path in glob.glob("/usr/lib/python3*/**/*.pyc", recursive=True):
    with open(path, "rb") as file:
        flags, time = struct.unpack("<4xII", file.read(12))
    source = importlib.util.source_from_cache(path)
    stale = int(os.stat(source).st_mtime) != time
    found["source read again" if flags else "out of date" if stale else "used as it is"] += 1
print(found["used as it is"], found["source read again"], found["out of date"])
"""


@pytest.mark.usefixtures("bench")
def test_pythons_bytecode_is_used_without_reading_its_source():
    with closing(Store.default()) as store:
        borrowed = resolve("bench", store).key == resolve("host", store).key
    if borrowed:
        pytest.skip(f"bench is this machine's own /usr; enable: {INSTALL}")

    async def main():
        async with connect("native") as substrate, substrate.create(Spec(image="bench")) as box:
            return (await box.run(["python3", "-c", COUNT])).text()

    used, read_again, stale = map(int, asyncio.run(main()).split())
    assert (read_again, stale) == (0, 0)
    assert used > 1000
