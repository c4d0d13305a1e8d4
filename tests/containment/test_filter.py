"""The filter's list, seen from inside: what is not on it is refused, and what coding agents do is on it."""

import asyncio
import json
import shutil

import pytest

import dutyfree

UNLISTED = {
    "io_uring_setup": 425, "io_uring_enter": 426, "memfd_secret": 447, "cachestat": 451, "map_shadow_stack": 453,
    "statmount": 457, "listmount": 458, "lsm_get_self_attr": 459, "open_tree_attr": 467, "the future": 900,
    "process_madvise": 440, "process_mrelease": 448,
}  # fmt: skip
"""The same numbers on every architecture."""

ASK = """
import ctypes, errno, json, sys
libc = ctypes.CDLL(None, use_errno=True)
def call(number):
    ctypes.set_errno(0)
    return errno.errorcode.get(ctypes.get_errno()) if libc.syscall(number, 0, 0, 0, 0, 0, 0) == -1 else "ok"
print(json.dumps({name: call(number) for name, number in json.loads(sys.argv[1]).items()}))
"""

TOOLS = {
    "python3": "python3 -c 'import asyncio, multiprocessing as m; asyncio.run(asyncio.sleep(0)); m.Process(target=print).start()'",
    "git": "git init -q r && cd r && git -c user.name=a -c user.email=a@b commit -q --allow-empty -m x && git gc -q",
    "gcc": "echo 'int main(){return 0;}' >a.c && gcc a.c -o a && ./a",
    "make": "printf 'all:\\n\\ttrue\\n' >Makefile && make -j4",
    "node": 'node -e \'new (require("worker_threads").Worker)("0", {eval: true}); require("fs").watch("/tmp").close()\'',
    "go": "cd /tmp && printf 'package main\\nfunc main() { println(1) }' >m.go && HOME=/tmp GOTOOLCHAIN=local go run m.go",
    "java": "echo 'class A { public static void main(String[] a) { System.gc(); } }' >A.java && java A.java",
    "strace": "strace -f -o log true && grep -q exit_group log",
    "gdb": "gdb -q -batch -ex run --args true | grep 'exited normally'",
    "tar": "tar -cf x.tar /etc/passwd && tar -xf x.tar",
    "script": "script -qc 'echo hi' /dev/null",
}


def run_inside(command, **options):
    async def run():
        async with dutyfree.connect("native") as substrate, substrate.create(dutyfree.Spec(cwd="/tmp")) as box:
            return await box.run(command, timeout_s=120, **options)

    return asyncio.run(run())


def test_what_is_not_on_the_list_answers_as_a_kernel_without_it():
    outcome = run_inside(["python3", "-c", ASK, json.dumps(UNLISTED)])
    assert json.loads(outcome.stdout) == dict.fromkeys(UNLISTED, "ENOSYS")


def test_sync_answers_without_flushing_the_disks_of_the_host():
    assert run_inside(["sync"]).ok


def test_a_pair_of_sockets_is_a_unix_pair_or_none():
    code = "import socket; socket.socketpair(); socket.socketpair(30)"
    assert b"not supported" in run_inside(["python3", "-c", code]).stderr


@pytest.mark.parametrize("tool", sorted(TOOLS))
def test_what_coding_agents_use_works(tool):
    place = shutil.which(tool, path="/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin")
    if place is None:
        pytest.skip(f"{tool} is not on this machine: apt-get install -y {tool}")
    outcome = run_inside(TOOLS[tool], env={"PATH": "/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"})
    assert outcome.ok, (outcome.ending, outcome.stdout[-300:], outcome.stderr[-600:])
