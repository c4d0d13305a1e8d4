"""The first programs that a new user writes; `test_newcomer.py` runs each of them with an installed wheel.

python first_programs.py groups|image|session|crowd|workers ARGUMENTS
"""

import asyncio
import multiprocessing
import os
import random
import sys
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor

import dutyfree
from dutyfree import blocking


async def groups():
    """64 rollouts, as 8 groups of 8 forks of one prepared sandbox; a rollout's reward is a hidden check's."""
    check = dutyfree.Check(command=["python3", "-I", "/task/hidden.py"], timeout_s=20)
    hidden = {"/task/hidden.py": b"import runpy; assert runpy.run_path('/task/answer.py')['answer'] == 42\n"}
    spec = dutyfree.Spec()

    async def rollout(substrate, box, guess):
        await box.write("/task/answer.py", f"answer = {guess}\n".encode())
        found = await dutyfree.verify(substrate, spec, box, allow=["/task/answer.py"], hidden=hidden, checks=[check])
        return float(found.passed)

    async def group(substrate, number):
        async with substrate.create() as start:
            await start.write("/task/answer.py", b"answer = None\n")
            forks = await asyncio.gather(*await start.fork(8))
            try:
                return await asyncio.gather(
                    *(rollout(substrate, box, 42 if i <= number else 41) for i, box in enumerate(forks))
                )
            finally:
                await asyncio.gather(*(box.destroy() for box in forks))

    async with dutyfree.connect("native") as substrate:
        async with substrate.create() as box:
            await box.run(["mkdir", "/task"])
        rewards = [await group(substrate, number) for number in range(8)]
    assert [sum(group) for group in rewards] == [1, 2, 3, 4, 5, 6, 7, 8], rewards
    print("groups: 64 rewards, sum", int(sum(map(sum, rewards))))


async def image(name):
    """A sandbox of one's own image."""
    async with dutyfree.connect("native") as substrate, substrate.create(dutyfree.Spec(image=name)) as box:
        out = await box.run("echo $((6 * 7)); touch /new; ls -d /new")
        assert out.stdout == b"42\n/new\n", out
    print("image:", name)


async def session():
    """A shell that remembers, output as it comes, a server inside, and its port outside."""
    async with dutyfree.connect("native") as substrate, substrate.create() as box:
        async with await box.shell() as shell:
            await shell.run("cd /tmp; greet() { echo hello from $PWD; }")
            out = await shell.run("greet")
            assert out.text() == "hello from /tmp\n", out
        process = await box.start("for i in 1 2 3; do echo $i; sleep 0.05; done")
        said = [chunk async for _, chunk in process]
        assert b"".join(said) == b"1\n2\n3\n", said
        assert (await process.wait()).ok
        await box.write("/srv/index.html", b"served\n")
        server = await box.start("exec python3 -m http.server 8000 --bind 127.0.0.1 -d /srv")
        async with await box.expose(8000) as outside:
            print("session:", (await fetched(outside.port)).decode().strip())
        await server.kill()
        await server.wait()


async def fetched(port):
    """The page, once the server answers."""
    for _ in range(200):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.0\r\n\r\n")
        page = await reader.read()
        writer.close()
        if page:
            return page.rpartition(b"\r\n\r\n")[2]
        await asyncio.sleep(0.05)
    raise SystemExit("the server did not answer")


async def crowd():
    """200 sandboxes alive at once, each with pauses as long as a model thinks."""
    at_once = asyncio.Semaphore(16)
    limits = dutyfree.Limits(pids=32, memory_bytes=64 << 20 if os.geteuid() == 0 else None)  # memory: for root
    alive, arrived = [0], asyncio.Event()

    async def rollout(substrate, number):
        async with at_once:
            box = await substrate.create(dutyfree.Spec(limits=limits))
        async with box:
            alive[0] += 1
            if alive[0] == 200:
                arrived.set()
            await arrived.wait()
            for step in range(3):
                await asyncio.sleep(random.Random(number * 3 + step).uniform(0.1, 1.0))
                out = await box.run(f"echo {number} {step} >> /tmp/log; tail -n 1 /tmp/log", timeout_s=60)
                assert out.stdout == f"{number} {step}\n".encode(), out

    async with dutyfree.connect("native") as substrate:
        await asyncio.gather(*(rollout(substrate, number) for number in range(200)))
    print("crowd: 200 alive at once")


def workers():
    """32 threads on one synchronous substrate, then 8 worker processes with one each."""
    with blocking.connect("native") as substrate:

        def in_thread(number):
            with substrate.create() as box:
                return box.run(["echo", str(number)], timeout_s=60).text().strip() == str(number)

        with ThreadPoolExecutor(32) as pool:
            assert all(pool.map(in_thread, range(64)))
    with ProcessPoolExecutor(8, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert list(pool.map(in_process, [dutyfree.Spec(env={"N": str(n)}) for n in range(8)])) == list("01234567")
    print("workers: 64 by threads, 8 by processes")


def in_process(spec):
    """A rollout in a worker, whose specification came by pickle."""
    with blocking.connect("native") as substrate, substrate.create(spec) as box:
        return box.run("echo $N", timeout_s=60).text().strip()


if __name__ == "__main__":
    program = globals()[sys.argv[1]]
    found = program(*sys.argv[2:])
    if asyncio.iscoroutine(found):
        asyncio.run(found)
