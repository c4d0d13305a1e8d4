"""What the proxy is made of: streams without descriptors, look-ups that hold up nobody, and connections counted."""

import asyncio
import os
import resource
import socket
import threading

import pytest

from dutyfree.guest.budget import Budget
from dutyfree.guest.pipe import connected
from dutyfree.guest.resolver import MAX_THREADS, Resolver


async def test_a_pipe_carries_both_ways_and_holds_up_a_writer_that_is_not_read():
    before = len(os.listdir("/proc/self/fd"))
    (reader, writer), (other_reader, other_writer) = connected()
    assert len(os.listdir("/proc/self/fd")) == before
    data = bytes(range(256)) * 4096

    async def send():
        for start in range(0, len(data), 10_000):
            writer.write(data[start : start + 10_000])
            await writer.drain()
        writer.write_eof()

    sending = asyncio.ensure_future(send())
    for _ in range(10):
        await asyncio.sleep(0)
    assert not sending.done()
    assert await other_reader.read() == data
    await sending
    other_writer.write(b"answer")
    other_writer.close()
    assert await reader.read() == b"answer"
    writer.close()
    await asyncio.gather(writer.wait_closed(), other_writer.wait_closed())


async def test_who_writes_to_a_pipe_whose_other_end_closed_is_told():
    (_, writer), (_, other_writer) = connected()

    async def send():
        while True:
            writer.write(b"x" * 65536)
            await writer.drain()

    sending = asyncio.ensure_future(send())
    for _ in range(10):
        await asyncio.sleep(0)
    other_writer.close()
    with pytest.raises(ConnectionResetError):
        await sending
    writer.close()


async def test_look_ups_that_nobody_answers_take_no_thread_of_the_owners(monkeypatch):
    answered = threading.Event()
    asked = []

    def getaddrinfo(name, port, **_):
        asked.append(name)
        answered.wait()
        return [(socket.AF_INET6, socket.SOCK_STREAM, 6, "", ("fe80::1%eth0", port, 0, 2))]

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    hog, other = Resolver(), Resolver()
    waiting = [asyncio.ensure_future(hog.resolve(f"n{count}", 80)) for count in range(50)]
    mine = asyncio.ensure_future(other.resolve("mine", 80))
    assert await asyncio.to_thread(lambda: "the owner's pool is free") == "the owner's pool is free"
    assert len([name for name in asked if name != "mine"]) == MAX_THREADS
    waiting[0].cancel()
    answered.set()
    assert await mine == [(socket.AF_INET6, "fe80::1")]
    assert len(await asyncio.gather(*waiting[1:])) == 49


async def test_who_takes_all_connections_it_can_leaves_as_many_to_others():
    budget = Budget()
    soft = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    contexts = []

    def take(mine):
        context = budget.connection(mine, 1 << 30)
        if room := context.__enter__():
            contexts.append(context)
        return room

    owned = [set() for _ in range(4)]
    while sum([take(mine) for mine in owned]):
        pass
    total = sum(map(len, owned))
    assert total <= soft // 4
    assert take(set())
    assert max(map(len, owned)) <= soft // 4 - total + 1
    for context in contexts:
        context.__exit__(None, None, None)
    assert take(set())
