"""`dutyfree.blocking`: the same results without an event loop of one's own."""

import asyncio
import os
import random
import signal
import socket
import threading

import pytest

from dutyfree import blocking
from dutyfree.blocking.bridge import Bridge, Job
from dutyfree.core.errors import Misuse, Unsupported
from dutyfree.core.spec import Spec


@pytest.fixture
def bridge():
    bridge = Bridge()
    yield bridge
    bridge.close()


@pytest.fixture
def host():
    with blocking.connect("host") as substrate:
        yield substrate


async def answer(value):
    await asyncio.sleep(0)
    return value


async def fail(error):
    raise error


def test_a_result_crosses_the_threads(bridge):
    assert bridge.call(answer(7)) == 7


def test_an_error_crosses_the_threads(bridge):
    with pytest.raises(FileNotFoundError):
        bridge.call(fail(FileNotFoundError()))
    assert bridge.call(answer(1)) == 1


def test_many_threads_share_one_loop(bridge):
    results = []

    def work(i):
        results.extend(bridge.call(answer(i)) for _ in range(50))

    threads = [threading.Thread(target=work, args=(i,)) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == sorted(i for i in range(16) for _ in range(50))


def test_a_keyboard_interrupt_cancels_the_action_and_is_raised(bridge):
    events = []
    main = threading.main_thread().ident

    async def long():
        events.append("started")
        signal.pthread_kill(main, signal.SIGINT)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            events.append("undone")

    with pytest.raises(KeyboardInterrupt):
        bridge.call(long())
    assert events == ["started", "undone"]
    assert bridge.call(answer("usable")) == "usable"


@pytest.fixture
def handler():
    """Installs a handler for SIGUSR1, for the length of the test."""
    before = signal.getsignal(signal.SIGUSR1)
    yield lambda function: signal.signal(signal.SIGUSR1, function)
    signal.signal(signal.SIGUSR1, before)


def test_a_signal_handler_that_raises_cancels_the_action(bridge, handler):
    def give_up(*_):
        raise TimeoutError("enough")

    handler(give_up)
    undone = threading.Event()

    async def long():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        try:
            await asyncio.get_running_loop().create_future()
        finally:
            undone.set()

    with pytest.raises(TimeoutError, match="enough"):
        bridge.call(long())
    assert undone.is_set()
    assert signal.getsignal(signal.SIGUSR1) is give_up


def test_signals_at_any_moment_leave_the_bridge_usable_and_the_handlers_in_place(bridge, handler):
    class Enough(Exception):
        pass

    armed, raised = False, 0

    def give_up(*_):
        nonlocal armed, raised
        if armed:
            armed, raised = False, raised + 1
            raise Enough

    handler(give_up)
    main, over = threading.main_thread().ident, threading.Event()

    def disturb():
        dice = random.Random(7)
        while not over.wait(dice.random() * 0.0005):
            signal.pthread_kill(main, signal.SIGUSR1)

    thread = threading.Thread(target=disturb)
    thread.start()
    try:
        while raised < 100:
            work = answer(raised)
            try:
                armed = True
                bridge.call(work)
                armed = False
            except Enough:
                work.close()  # the signal may have come before the call
    finally:
        over.set()
        thread.join()
    assert bridge.call(answer("usable")) == "usable"
    assert signal.getsignal(signal.SIGUSR1) is give_up


def test_an_action_that_is_taken_back_before_its_first_step_is_over():
    async def main():
        job = Job(asyncio.get_running_loop(), answer(1), lambda _: None)
        job.start()
        job.cancel()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        return job.over

    assert asyncio.run(main())


def test_a_signal_handler_may_use_the_bridge_and_the_action_goes_on(bridge, handler):
    told = asyncio.Event()

    async def tell():
        told.set()

    handler(lambda *_: bridge.call(tell()))

    async def long():
        signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
        await told.wait()
        return "done"

    assert bridge.call(long()) == "done"


def test_what_a_call_started_goes_on_between_calls(bridge):
    done = threading.Event()
    kept = []

    async def later():
        reader, writer = socket.socketpair()
        with reader, writer:
            reader.setblocking(False)
            for _ in range(3):
                await asyncio.sleep(0.001)
                asyncio.get_running_loop().call_later(0.001, writer.send, b"x")
                await asyncio.get_running_loop().sock_recv(reader, 1)
        done.set()

    async def begin():
        kept.append(asyncio.get_running_loop().create_task(later()))

    bridge.call(begin())
    assert done.wait(60)


def test_a_call_from_inside_another_loop_works(bridge):
    async def main():
        return bridge.call(answer("here too"))

    assert asyncio.run(main()) == "here too"


def test_a_long_call_of_one_thread_does_not_hold_up_another(bridge):
    started, free = threading.Event(), asyncio.Event()

    async def long():
        started.set()
        await free.wait()

    async def end():
        free.set()

    thread = threading.Thread(target=lambda: bridge.call(long()))
    thread.start()
    started.wait()
    bridge.call(end())
    thread.join()


def test_closing_ends_calls_of_other_threads():
    bridge = Bridge()
    started = threading.Event()
    caught = []

    async def long():
        started.set()
        await asyncio.get_running_loop().create_future()

    def work():
        try:
            bridge.call(long())
        except Misuse as error:
            caught.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    started.wait()
    bridge.close()
    thread.join()
    assert len(caught) == 1
    bridge.close()
    with pytest.raises(Misuse, match="closed"):
        bridge.call(answer(1))


def test_a_call_from_the_loop_itself_is_refused(bridge):
    async def inside():
        return bridge.call(answer(1))

    with pytest.raises(Misuse, match="own thread"):
        bridge.call(inside())


def test_a_sandbox_is_used_without_a_loop(host, tmp_path):
    with host.create(Spec(network="host")) as box:
        assert box.run(["echo", "hello"]).stdout == b"hello\n"
        box.write(f"{tmp_path}/d/f", b"data")
        assert box.read(f"{tmp_path}/d/f") == b"data"
        assert [info.name for info in box.list(f"{tmp_path}/d")] == ["f"]
        assert box.stat(f"{tmp_path}/d/f").size_bytes == 4
        with pytest.raises(FileNotFoundError):
            box.read(f"{tmp_path}/none")
        if not box.capabilities.snapshot:
            with pytest.raises(Unsupported):
                box.snapshot()


def test_an_interrupted_command_is_killed(host, tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def interrupt():
        fifo.read_text()
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

    with host.create(Spec(network="host")) as box:
        thread = threading.Thread(target=interrupt)
        thread.start()
        with pytest.raises(KeyboardInterrupt):
            box.run(f"echo go > {fifo}; sleep 1000")
        thread.join()
        assert box.run(["true"]).ok


def test_a_name_nobody_knows_leaves_no_thread():
    before = threading.active_count()
    with pytest.raises(Misuse):
        blocking.connect("no-such-substrate")
    assert threading.active_count() == before
