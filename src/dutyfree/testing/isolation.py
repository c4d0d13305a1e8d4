"""Tests of what separates sandboxes from each other and from the machine, and of limits."""

from __future__ import annotations

import asyncio
import os
import shlex
from contextlib import suppress
from pathlib import Path

import pytest

from dutyfree.core.errors import DutyfreeError, Unsupported
from dutyfree.core.spec import ISOLATION_ORDER
from dutyfree.testing.base import NotOffered, Suite, shell_of

FORK = """
import os, signal
children = []
try:
    while len(children) < 40:
        pid = os.fork()
        if pid == 0:
            signal.pause()
        children.append(pid)
except BlockingIOError:
    pass
print(len(children), flush=True)
"""
ALLOCATE = ["python3", "-c", "x = b'x' * (512 << 20)"]
SUPERVISE = "import subprocess, sys; subprocess.run(sys.argv[1:])"
"""What a test runner does: it goes on when a process of its own was killed."""
FILL = """
import os
home = os.path.expanduser("~")
try:
    for number in range(200_000):
        with open(f"{home}/{number}", "wb") as file:
            file.write(bytes(SIZE))
except OSError as error:
    print(error.strerror)
"""
FILL_BY_SIZE, FILL_BY_NUMBER = FILL.replace("SIZE", "1 << 20"), FILL.replace("SIZE", "0")
LISTEN = "import socket; socket.create_server(('127.0.0.1', 8124)); print('ok', flush=True)"


class IsolationSuite(Suite):
    async def test_a_file_of_one_sandbox_is_not_in_another(self) -> None:
        self.isolated()
        async with self.box() as one, self.box() as other:
            await one.write("/tmp/mine", b"secret")
            with pytest.raises(FileNotFoundError):
                await other.read("/tmp/mine")

    async def test_the_machines_files_are_not_written(self, tmp_path: Path) -> None:
        self.isolated()
        async with self.box() as box:
            with suppress(OSError):  # a read-only /usr is one way to keep the promise
                await box.write("/usr/bin/dutyfree-contract", b"x")
            assert (await box.run(["sh", "-c", f"mkdir -p {tmp_path} && echo x >{tmp_path}/file"])).ok
        assert not Path("/usr/bin/dutyfree-contract").exists()
        assert list(tmp_path.iterdir()) == []

    async def test_the_owners_secrets_are_not_there(self, tmp_path: Path) -> None:
        self.isolated()
        (tmp_path / "key").write_text("s3cret")
        async with self.box() as box:
            assert not (await box.run(["cat", str(tmp_path / "key")])).ok

    async def test_processes_of_one_sandbox_are_not_seen_in_another(self) -> None:
        self.isolated()
        async with self.box() as one, self.box() as other:
            task = asyncio.create_task(one.run(["sleep", "61.5"], timeout_s=60))
            seen = await other.run("cat /proc/[0-9]*/cmdline | tr '\\0' ' '")
            assert b"61.5" not in seen.stdout
            assert str(os.getpid()).encode() not in (await other.run(["ls", "/proc"])).stdout.split()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    async def test_two_sandboxes_can_listen_on_the_same_port(self) -> None:
        self.isolated()
        if "none" not in self.substrate.capabilities.networks:
            raise NotOffered
        hold = f"{LISTEN.replace('socket.create_server', 's = socket.create_server')}; input()"
        async with self.box() as one, self.box() as other:
            process = await one.start(["python3", "-c", hold], stdin=None)
            assert await anext(aiter(process)) == ("stdout", b"ok\n")
            assert (await other.run(["python3", "-c", LISTEN])).stdout == b"ok\n"
            await process.kill()

    async def test_without_a_network_nothing_outside_is_reached(self) -> None:
        if "none" not in self.substrate.capabilities.networks:
            with pytest.raises(Unsupported):
                await self.box(network="none")
            return
        self.isolated()
        server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0)
        async with server, self.box(network="none") as box:
            port = server.sockets[0].getsockname()[1]
            assert not (await box.run(f"exec 3<>/dev/tcp/127.0.0.1/{port}", timeout_s=30)).ok
            assert not (await box.run("exec 3<>/dev/tcp/192.0.2.1/80", timeout_s=30)).ok

    async def test_stronger_isolation_than_is_offered_is_unsupported(self) -> None:
        offered = ISOLATION_ORDER.index(self.substrate.capabilities.isolation)
        for isolation in ISOLATION_ORDER:
            if ISOLATION_ORDER.index(isolation) > offered:
                with pytest.raises(Unsupported, match="isolation"):
                    await self.box(isolation=isolation)
            else:
                async with self.box(isolation=isolation) as box:
                    assert box.spec.isolation == isolation


class LimitSuite(Suite):
    def counting(self) -> None:
        """Go on only if something of ours is inside: an exec call per command tells an exit code and nothing else."""
        if self.substrate.capabilities.dispatch != "agent":
            raise NotOffered("oom_kills")

    async def test_more_processes_than_the_limit_cannot_be_had(self) -> None:
        box = await self.limited(pids=16)
        try:
            outcome = await box.run(["python3", "-c", FORK], timeout_s=60)
            started = int(outcome.stdout)
            assert 0 < started <= 16
            assert (await box.run(["true"], timeout_s=30)).ok
        finally:
            await box.destroy()

    async def test_more_memory_than_the_limit_ends_as_oom(self) -> None:
        box = await self.limited(memory_bytes=64 << 20)
        try:
            outcome = await box.run(ALLOCATE, timeout_s=60)
            assert outcome.ending == "oom"
            assert (await box.run(["true"], timeout_s=30)).ok
        finally:
            await box.destroy()

    async def test_what_the_memory_limit_killed_is_told_where_the_command_survives_it(self) -> None:
        self.counting()
        box = await self.limited(memory_bytes=64 << 20)
        try:
            for command in ALLOCATE, ["python3", "-c", SUPERVISE, *ALLOCATE]:
                survived = await box.run(["sh", "-c", '"$@"; exit 0', "sh", *command], timeout_s=60)
                assert (survived.ending, survived.exit_code, survived.oom_kills) == ("exit", 0, 1)
            killed = await box.run(ALLOCATE, timeout_s=60)
            assert (killed.ending, killed.oom_kills) == ("oom", 1)
            assert (await box.run(["true"], timeout_s=30)).oom_kills == 0
        finally:
            await box.destroy()

    async def test_what_the_memory_limit_killed_is_told_of_shells_and_streams_too(self) -> None:
        self.counting()
        box = await self.limited(memory_bytes=64 << 20)
        script = f"{shlex.join(ALLOCATE)}; true"
        try:
            outcome = await (await box.start(script)).wait()
            assert (outcome.ending, outcome.exit_code, outcome.oom_kills) == ("exit", 0, 1)
            shell = await shell_of(box)
            outcome = await shell.run(script)
            assert (outcome.ending, outcome.exit_code, outcome.oom_kills) == ("exit", 0, 1)
            assert (await shell.run("true")).oom_kills == 0
        finally:
            await box.destroy()

    async def test_less_memory_than_the_limit_is_fine(self) -> None:
        box = await self.limited(memory_bytes=128 << 20)
        try:
            outcome = await box.run(["python3", "-c", "x = b'x' * (32 << 20); print(len(x))"], timeout_s=60)
            assert outcome.stdout == b"33554432\n"
        finally:
            await box.destroy()

    async def test_more_disk_than_the_limit_cannot_be_written(self) -> None:
        box = await self.limited(disk_bytes=4 << 20)
        try:
            outcome = await box.run("head -c 16000000 /dev/zero >$HOME/big; stat -c %s $HOME/big", timeout_s=60)
            assert int(outcome.stdout.split()[-1]) <= 4 << 20
            assert b"No space left" in outcome.stderr
        finally:
            await box.destroy()

    async def test_files_without_a_limit_of_their_own_do_not_use_up_the_memory(self) -> None:
        if "disk_bytes" not in self.substrate.capabilities.limits:
            raise NotOffered("a filesystem of the sandbox's own")
        box = await self.limited(memory_bytes=64 << 20)
        try:
            for fill in FILL_BY_SIZE, FILL_BY_NUMBER:
                outcome = await box.run(["python3", "-c", fill], timeout_s=60)
                assert (outcome.ending, outcome.text()) == ("exit", "No space left on device\n"), outcome
            assert (await box.run(["python3", "-c", "len(bytes(8 << 20))"], timeout_s=30)).ok
        finally:
            await box.destroy()

    async def test_more_files_than_the_limit_cannot_be_made(self) -> None:
        box = await self.limited(files=200)
        try:
            script = "cd $HOME; i=0; while [ $i -lt 400 ] && : >f$i; do i=$((i+1)); done 2>/dev/null; ls | wc -l"
            outcome = await box.run(script, timeout_s=60)
            assert int(outcome.stdout) <= 200
        finally:
            await box.destroy()

    async def test_more_processor_time_than_the_limit_cannot_be_had(self) -> None:
        box = await self.limited(cpus=0.2)
        try:
            outcome = await box.run("while :; do :; done", timeout_s=2)
            assert outcome.ending == "timeout"
            # Half of the wall time is far above a fifth and far below what an unlimited loop takes.
            assert outcome.cpu_ns == 0 or outcome.cpu_ns < outcome.run_ns / 2
        finally:
            await box.destroy()

    async def test_a_limit_that_is_not_enforced_is_refused(self) -> None:
        every = {"cpus": 1.0, "memory_bytes": 256 << 20, "pids": 64, "disk_bytes": 64 << 20, "files": 10_000}
        for name, value in every.items():
            try:
                box = await self.limited(**{name: value})
            except NotOffered:
                continue
            try:
                assert (await box.run(["true"])).ok
            finally:
                await box.destroy()

    async def test_a_refused_sandbox_names_the_driver(self) -> None:
        with pytest.raises(DutyfreeError) as caught:
            await self.box(image="no-such-image-anywhere")
        assert caught.value.driver == self.substrate.name
