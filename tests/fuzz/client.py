"""A hostile agent: whatever it says, every call of the client ends in a result or an error of ours, and nothing is written outside."""

import asyncio
import os
import shutil
import struct
import sys
import tempfile
from pathlib import Path

import atheris

with atheris.instrument_imports(include=["dutyfree"]):
    from dutyfree.core.contract import Capabilities
    from dutyfree.core.errors import DutyfreeError, Violation
    from dutyfree.core.spec import Spec
    from dutyfree.core.timeline import Timeline
    from dutyfree.guest.link import Link
    from dutyfree.guest.sandbox import AgentSandbox

ABILITIES = Capabilities(
    isolation="none", dispatch="agent", networks=frozenset({"none"}), storages=frozenset({"memory"})
)
HELLO = struct.pack("<IIBBH", 20, 0, 1, 0, 0) + struct.pack("<IHHIQ", 0x41465344, 1, 0, 1 << 20, 0)
KINDS = (0x20, 0x21, 0x22, 0x23, 0x50, 0x51, 0x52, 0x41, 0x43, 0x17, 0x01)
CHANNELS = (1, 2, 3, 4, 5, 6, 0, 0x80000001)
MOST_FRAMES = 12
PLACE = Path(tempfile.mkdtemp(dir=os.environ.get("FUZZ_KEEP", "/dev/shm")))
LOOP = asyncio.new_event_loop()


class Mouth:
    """A transport whose other end is the fuzzer."""

    def start(self, parser, lost):
        self._parser, self._lost, self.closed = parser, lost, False

    def send(self, *parts):
        pass

    async def drained(self):
        pass

    def close(self):
        self.closed = True

    def say(self, data):
        if self.closed:
            return
        try:
            self._parser.feed(data)
        except Violation as violation:
            self.closed = True
            self._lost(str(violation), True)

    def end(self):
        if not self.closed:
            self.closed = True
            self._lost("the fuzzer is done", False)


async def watched(box):
    process = await box.start(["cat"], stdin=None)
    await process.write(b"x" * 1000)
    async for _ in process:
        pass
    return await process.wait()


async def in_shell(box):
    shell = await box.shell()
    await shell.run("true")
    await shell.close()


ACTIONS = (
    lambda box, folder: box.run(["true"], stdin=b"x" * 100_000, output_limit_bytes=1000),
    lambda box, folder: watched(box),
    lambda box, folder: in_shell(box),
    lambda box, folder: box.read("/f", length=1000),
    lambda box, folder: box.write("/f", b"x" * 300_000),
    lambda box, folder: box.list("/"),
    lambda box, folder: box.stat("/"),
    lambda box, folder: box.download("/d", folder / "target", limit_bytes=100_000),
    lambda box, folder: box.upload(folder / "source", "/d"),
    lambda box, folder: box.mkdir("/d"),
)


def pieces(data):
    """Frames that are nearly right, and then the rest as it is."""
    for _ in range(data.ConsumeIntInRange(0, MOST_FRAMES)):
        if data.remaining_bytes() == 0:
            return
        kind, channel = KINDS[data.ConsumeIntInRange(0, 10)], CHANNELS[data.ConsumeIntInRange(0, 7)]
        payload = shaped(data, kind)
        flags = data.ConsumeIntInRange(0, 255) if data.ConsumeIntInRange(0, 15) == 0 else data.ConsumeIntInRange(0, 1)
        yield struct.pack("<IIBBH", len(payload), channel, kind, flags, 0) + payload
    yield data.ConsumeBytes(data.remaining_bytes())


def shaped(data, kind):
    if data.ConsumeBool():
        return data.ConsumeBytes(data.ConsumeIntInRange(0, 2000))
    if kind == 0x23:
        return struct.pack(
            "<BBHIQQQQQ",
            data.ConsumeIntInRange(0, 6),
            data.ConsumeIntInRange(0, 3),
            0,
            data.ConsumeIntInRange(0, 256),
            1,
            1,
            1,
            data.ConsumeIntInRange(0, 1 << 63),
            data.ConsumeIntInRange(0, 1),
        )
    if kind == 0x20:
        return struct.pack("<I", data.ConsumeIntInRange(0, 1 << 31))
    if kind in (0x17, 0x51):
        return struct.pack("<Q", data.ConsumeIntInRange(0, (1 << 64) - 1))
    if kind == 0x41:
        return struct.pack("<I", data.ConsumeIntInRange(0, 6))
    if kind == 0x52:
        what = data.ConsumeBytes(10)
        return struct.pack("<II", data.ConsumeIntInRange(0, 200), len(what)) + what + struct.pack("<I", 0)
    return b""


async def converse(data, folder):
    mouth = Mouth()
    link = Link.attach(mouth, sandbox="fuzzed")
    mouth.say(HELLO)
    await link.hello(60)

    async def release():
        pass

    box = AgentSandbox(
        id="fuzzed", spec=Spec(), capabilities=ABILITIES, timeline=Timeline(), link=link, release=release
    )
    picked = [ACTIONS[data.ConsumeIntInRange(0, len(ACTIONS) - 1)] for _ in range(data.ConsumeIntInRange(1, 3))]
    calls = [asyncio.ensure_future(act(box, folder)) for act in picked]
    for piece in pieces(data):
        await asyncio.sleep(0)
        mouth.say(piece)
    if data.ConsumeBool():
        calls[0].cancel()
    for _ in range(4):
        await asyncio.sleep(0)
    mouth.end()
    async with asyncio.timeout(60):
        ended = await asyncio.gather(*calls, return_exceptions=True)
        await box.destroy()
    for one in ended:
        if isinstance(one, BaseException) and not isinstance(one, (DutyfreeError, OSError, asyncio.CancelledError)):
            raise one
    left = asyncio.all_tasks() - {asyncio.current_task()}
    assert not left, f"tasks left behind: {left}"


def one_input(raw):
    folder = PLACE / "run"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "source" / "d").mkdir(parents=True)
    (folder / "source" / "d" / "f").write_bytes(b"x" * 5000)
    before = len(os.listdir("/proc/self/fd"))
    LOOP.run_until_complete(converse(atheris.FuzzedDataProvider(raw), folder))
    assert set(os.listdir(folder)) <= {"source", "target"}, os.listdir(folder)
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors are left open"


if __name__ == "__main__":
    asyncio.set_event_loop(LOOP)
    atheris.Setup(sys.argv, one_input)
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)
