"""Paced output: as exact as the plain one, and no faster than its reader."""

import asyncio
import os
import shutil

import pytest

from dutyfree.driver.exec_call import STDERR, STDOUT, CappedStreams, ExecCall
from dutyfree.substrates.hosted.text import Reading, prepare

LINE, BLOCK = 9000, 150_000
"""Bytes of one line, and about those that one round brings."""


async def no_file(path: str, data: bytes) -> None:
    raise AssertionError(path)


async def run(shell: str, *argv: str) -> tuple[int, bytes, bytes]:
    script = await prepare(ExecCall(argv=argv), no_file, paced=True)
    process = await asyncio.create_subprocess_exec(
        *shell.split(), "-c", script, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    out, err = await process.communicate()
    kept = CappedStreams(1 << 30)
    reading = Reading(kept, driver="test")
    await reading.take(STDOUT, out.decode())
    await reading.take(STDERR, err.decode())
    assert reading.ended is not None
    return reading.ended.exit_code, kept.stdout.kept(), kept.stderr.kept()


@pytest.mark.parametrize("shell", ["bash", "dash", "busybox sh"])
@pytest.mark.parametrize("size", [0, 1, LINE - 1, LINE, LINE + 1, BLOCK, BLOCK + 1, 3 * BLOCK + 17])
def test_every_byte_arrives_whatever_the_size(shell: str, size: int, tmp_path):
    if shutil.which(shell.split(maxsplit=1)[0]) is None:
        pytest.skip(f"there is no {shell}; enable: apt-get install -y {shell.split(maxsplit=1)[0]}")
    data = os.urandom(size)
    (tmp_path / "data").write_bytes(data)
    code, out, err = asyncio.run(run(shell, "sh", "-c", 'cat "$0"; cat "$0" >&2; exit 3', str(tmp_path / "data")))
    assert (code, out, err) == (3, data, data)
