"""What the kernel charges to nobody, or takes from one table of the machine: a sandbox gets none of it, or little."""

import asyncio
import json
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import dutyfree

pytestmark = pytest.mark.skipif(platform.machine() != "x86_64", reason="system calls are asked for by x86_64's numbers")

ASK = """
import ctypes, errno, json, os, resource, socket, struct, sys
libc = ctypes.CDLL(None, use_errno=True)

def call(number, *arguments):
    ctypes.set_errno(0)
    longs = [a if isinstance(a, bytes) else ctypes.c_long(a) for a in arguments]
    return errno.errorcode[ctypes.get_errno()] if libc.syscall(ctypes.c_long(number), *longs) == -1 else "ok"

def attempt(function, *arguments):
    try:
        function(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "ok"

def option(level, name, family=socket.AF_INET, kind=socket.SOCK_DGRAM, value=b"\\1\\0\\0\\0"):
    with socket.socket(family, kind) as one:
        return attempt(one.setsockopt, level, name, value)

def terminals():
    taken = []
    while attempt(lambda: taken.append(os.open("/dev/ptmx", os.O_RDWR | os.O_NOCTTY))) == "ok":
        pass
    return len(taken)

open("/tmp/marked", "w").close()
print(json.dumps({name: eval(code) for name, code in json.loads(sys.argv[1]).items()}))
"""

REFUSED = {
    "time stamps": ("option(1, 37)", "ENOPROTOOPT"),
    "new time stamps": ("option(1, 65)", "ENOPROTOOPT"),
    "zero copy": ("option(1, 60, kind=socket.SOCK_STREAM)", "ENOPROTOOPT"),
    "errors": ("option(0, 11)", "ENOPROTOOPT"),
    "errors of IPv6": ("option(41, 25, socket.AF_INET6)", "ENOPROTOOPT"),
    "groups": ("option(0, 35)", "ENOPROTOOPT"),
    "groups of IPv6": ("option(41, 20, socket.AF_INET6)", "ENOPROTOOPT"),
    "flow labels": ("option(41, 32, socket.AF_INET6)", "ENOPROTOOPT"),
    "keys": ("option(6, 14, kind=socket.SOCK_STREAM)", "ENOPROTOOPT"),
    "protocols on top": ("option(6, 31, kind=socket.SOCK_STREAM, value=b'tls')", "ENOPROTOOPT"),
    "a filter": ("option(1, 26)", "ENOPROTOOPT"),
    "a program": ("option(1, 50)", "ENOPROTOOPT"),
    "a level nobody knows": ("option(284, 1, kind=socket.SOCK_STREAM)", "ENOPROTOOPT"),
    "multipath": ("attempt(socket.socket, socket.AF_INET, socket.SOCK_STREAM, 262)", "EPROTONOSUPPORT"),
    "netlink of another family": ("attempt(socket.socket, 16, 3, 4)", "EPROTONOSUPPORT"),
    "a large attribute": ("attempt(os.setxattr, '/tmp/marked', 'user.large', b'x' * 1025)", "ENOSPC"),
    "legacy aio": ("call(206, 1, 0)", "ENOSYS"),
    "a policy of memory": ("call(237, 0, 4096, 2, 0, 0, 0)", "EPERM"),
    "a system call filter": ("call(317, 1, 0, 0)", "EINVAL"),
    "the same by prctl": ("call(157, 22, 2, 0)", "EINVAL"),
    "limits of the agent": ("call(302, 1, 7, 0, 0)", "EPERM"),
    "scheduling of the agent": ("attempt(os.sched_setscheduler, 1, os.SCHED_IDLE, os.sched_param(0))", "EPERM"),
    "processors of the agent": ("attempt(os.sched_setaffinity, 1, [0])", "EPERM"),
    "priority of the agent": ("attempt(os.setpriority, os.PRIO_PROCESS, 1, 19)", "EPERM"),
    "priority of a whole user": ("attempt(os.setpriority, os.PRIO_USER, os.getuid(), 19)", "EPERM"),
    "disk priority of the agent": ("call(251, 1, 1, 3 << 13)", "EPERM"),
    "disk priority of a whole user": ("call(251, 3, os.getuid(), 3 << 13)", "EPERM"),
}

TAKEN = {
    "queue sizes": "option(1, 8)",
    "what servers set": "{option(1, 2), option(1, 15), option(6, 1, kind=socket.SOCK_STREAM), option(1, 9)} == {'ok'} and 'ok'",
    "what datagrams are told": "option(0, 8), option(41, 49, socket.AF_INET6)",
    "a small attribute": "attempt(os.setxattr, '/tmp/marked', 'user.small', b'x' * 1024) in ('ok', 'ENOTSUP') and 'ok'",
    "one's own limits": "attempt(resource.setrlimit, resource.RLIMIT_CORE, (0, 1))",
    "one's own priority": "attempt(os.setpriority, os.PRIO_PROCESS, 0, 1)",
    "one's own processors": "attempt(os.sched_setaffinity, 0, [0])",
    "interfaces": "socket.if_nameindex()[0][1] == 'lo' and 'ok'",
    "synchronising": "call(306, os.open('/usr', os.O_RDONLY))",
}


def ask(questions, user):
    async def run():
        async with dutyfree.connect("native") as substrate, substrate.create(dutyfree.Spec(image="host")) as box:
            outcome = await box.run(["python3", "-c", ASK, json.dumps(questions)], user=user, timeout_s=60)
            assert outcome.ok, outcome.stderr.decode()
            return json.loads(outcome.stdout)

    return asyncio.run(run())


@pytest.mark.parametrize("user", ["root", "65534"])
def test_objects_that_nobody_is_charged_for_are_refused(user):
    seen = ask({name: code for name, (code, _) in REFUSED.items()}, user)
    assert seen == {name: error for name, (_, error) in REFUSED.items()}


def test_what_programs_need_of_the_same_calls_is_granted():
    seen = ask(TAKEN, "root")
    assert seen == dict.fromkeys(TAKEN, "ok") | {"what datagrams are told": ["ok", "ok"]}


def test_terminals_and_open_files_of_a_sandbox_are_a_share_of_the_machines():
    questions = {"terminals": "terminals()", "files": "resource.getrlimit(resource.RLIMIT_NOFILE)"}
    seen = ask(questions, "65534")
    assert seen["terminals"] == 64
    soft, hard = seen["files"]
    assert soft == hard
    assert 1024 <= hard <= 4096


def test_the_first_process_tells_nothing_of_the_host():
    seen = ask({name: f"open('/proc/{name}').read().rstrip(chr(0))" for name in ("1/cmdline", "cmdline", "locks")}, "0")
    assert seen == {"1/cmdline": "dutyfree-agent", "cmdline": "", "locks": ""}


LOOK = "head -c 1 /proc/1/maps; ls /proc/1/fd/; ls /proc/1/fd/15/"


@pytest.fixture
def dumps_after_changes_of_user():
    """fs.suid_dumpable at 1, as on machines whose owners debug set-id programs."""
    place = Path("/proc/sys/fs/suid_dumpable")
    if os.geteuid() != 0:
        pytest.skip("only root sets fs.suid_dumpable: sudo make test-all")
    before = place.read_text()
    place.write_text("1")
    yield
    place.write_text(before)


@pytest.mark.usefixtures("dumps_after_changes_of_user")
def test_the_agent_stays_unreadable_whoever_it_acted_for():
    async def run():
        async with dutyfree.connect("native") as substrate, substrate.create(dutyfree.Spec(image="host")) as box:
            await box.run("true", user="65534")
            after_command = (await box.run(LOOK)).stdout
            await box.write("/tmp/of-another", b"", user="65534")
            return after_command, (await box.run(LOOK)).stdout

    assert asyncio.run(run()) == (b"", b"")


CHAIN = """
import os, sys, time
end = time.monotonic() + 8
beats = os.open("/tmp/beats", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666)
for _ in range(6):
    if os.fork() == 0:
        os.setsid()
        while time.monotonic() < end:
            os.write(beats, b".")
            if os.fork() > 0:
                os._exit(0)
        os._exit(0)
"""


async def run_chains(box):
    for _ in range(4):
        await box.run(["python3", "-c", CHAIN], timeout_s=60)
        first = (await box.stat("/tmp/beats")).size_bytes
        await asyncio.sleep(0.2)
        assert (await box.stat("/tmp/beats")).size_bytes == first


def test_processes_that_fork_and_exit_do_not_outlive_their_command():
    async def run():
        async with dutyfree.connect("native") as substrate, substrate.create(dutyfree.Spec(image="host")) as box:
            await run_chains(box)

    asyncio.run(run())


def test_nor_beside_another_command_which_lives_on():
    busy = "for i in $(seq 300); do /bin/true; done; sleep 1; echo lived"

    async def run():
        async with dutyfree.connect("native") as substrate, substrate.create(dutyfree.Spec(image="host")) as box:
            other = asyncio.ensure_future(box.run(busy))
            await run_chains(box)
            assert (await other).stdout == b"lived\n"

    asyncio.run(run())


CORKED = """
import os, resource, socket, time
sink = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sink.bind(("127.0.0.1", 0))
for _ in range(8):
    if os.fork() == 0:
        kept = []
        for _ in range(resource.getrlimit(resource.RLIMIT_NOFILE)[0] - 16):
            kept.append(socket.socket(socket.AF_INET, socket.SOCK_DGRAM))
            kept[-1].connect(sink.getsockname())
            kept[-1].send(bytes(64000), socket.MSG_MORE)
            time.sleep(0.005)
        os._exit(0)
time.sleep(12)
"""


@pytest.mark.slow("half a gigabyte of kernel memory, and a look at that of the whole machine")
def test_who_holds_memory_that_nobody_is_charged_for_is_killed_as_out_of_memory():
    async def run():
        limits = dutyfree.Limits(memory_bytes=128 << 20)
        spec = dutyfree.Spec(image="host", limits=limits)
        async with (
            dutyfree.connect("native") as substrate,
            substrate.create(spec) as box,
            substrate.create(spec) as other,
        ):
            beside = asyncio.ensure_future(other.run("sleep 2; echo lived"))
            outcome = await box.run(["python3", "-c", CORKED], timeout_s=60)
            assert outcome.ending == "oom"
            assert (await box.run("echo usable")).stdout == b"usable\n"
            assert (await beside).stdout == b"lived\n"

    asyncio.run(run())


OWNER = """
import asyncio, dutyfree, socket, sys
taken = [socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) for _ in range(64)]
for number, one in enumerate(taken):
    one.bind(f"\\0dutyfree-ids-{number}")  # what once stood for a range

async def main():
    async with dutyfree.connect("native") as substrate, substrate.create(dutyfree.Spec(image=sys.argv[1])) as box:
        print((await box.run("cat /proc/self/uid_map")).stdout.decode().split()[1], flush=True)
        sys.stdin.read()

asyncio.run(main())
"""


def first_ids_of_owners(image="host"):
    """Of two owners at once, each in a network namespace of its own where somebody holds all the names."""
    command = ["unshare", "-n", sys.executable, "-c", OWNER, image]
    owners = [subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    firsts = [owner.stdout.readline().strip() for owner in owners]
    for owner in owners:
        owner.communicate("", timeout=60)
    return firsts


def test_id_ranges_are_claimed_where_no_user_reaches_and_no_namespace_hides():
    if os.geteuid() != 0 or shutil.which("unshare") is None:
        pytest.skip("only root has ranges of ids, and unshare makes the namespaces: apt-get install -y util-linux")
    first, second = first_ids_of_owners()
    assert first.isdecimal()
    assert second.isdecimal()
    assert first != second
