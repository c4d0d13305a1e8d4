"""The parts of `host` that the contract does not reach."""

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import dutyfree
from dutyfree.driver.exec_call import CappedOutput
from dutyfree.substrates.host.directory import sweep_orphans
from dutyfree.substrates.host.driver import driver
from dutyfree.substrates.host.tree import kill_tree, members


@given(st.lists(st.binary(max_size=200)), st.integers(0, 300))
def test_a_capture_keeps_everything_or_its_head_and_tail(pieces: list[bytes], limit: int):
    capture, whole = CappedOutput(limit), b"".join(pieces)
    for piece in pieces:
        capture.add(piece)
    kept = capture.kept()
    assert capture.omitted_bytes == len(whole) - len(kept)
    if len(whole) <= limit:
        assert kept == whole
    else:
        assert len(kept) == limit
        head = limit // 2
        assert kept[:head] == whole[:head]
        assert limit == head or whole.endswith(kept[head:])


def test_a_capture_of_a_flood_stays_small():
    capture = CappedOutput(1000)
    for _ in range(100):
        capture.add(bytes(65536))
    assert len(capture._tail or b"") < 200_000
    assert len(capture.kept()) == 1000


def test_a_tree_is_found_and_killed_also_across_groups():
    script = "setsid sleep 60 & sleep 60 & echo ready; wait"
    with subprocess.Popen(["bash", "-c", script], stdout=subprocess.PIPE, start_new_session=True) as root:
        assert root.stdout.readline() == b"ready\n"
        assert len(members(root.pid)) == 2
        kill_tree(root.pid)
        assert members(root.pid) == []
        root.wait()


def test_a_sandbox_is_a_directory_that_goes_with_it():
    async def look() -> None:
        async with dutyfree.connect("host") as substrate, substrate.create() as box:
            home = (await box.run("echo $HOME; touch $HOME/x; touch $TMPDIR/y")).text().strip()
            assert os.listdir(home) == ["x"]
            assert (await box.run(["pwd"])).text().strip() == home
        assert not os.path.exists(os.path.dirname(home))

    asyncio.run(look())


def test_a_sandbox_goes_however_deep_its_directories_are():
    script = "import os\nfor _ in range(3000): os.mkdir('d'); os.chdir('d')"

    async def main():
        async with dutyfree.connect("host") as substrate, substrate.create() as box:
            place = Path((await box.run("pwd")).text().strip())
            assert (await box.run([sys.executable, "-c", script])).ok
        return place

    assert not asyncio.run(main()).exists()


OWNER = """
import asyncio, dutyfree
async def main():
    substrate = await dutyfree.connect("host")
    box = await substrate.create()
    print(box.directory, flush=True)
    input()
asyncio.run(main())
"""


def test_what_a_killed_owner_left_is_swept_by_the_next_and_what_a_live_one_has_is_not():
    async def connect() -> None:
        async with dutyfree.connect("host"):
            pass

    def owner() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", OWNER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    with owner() as live, owner() as killed:
        kept, left = (Path(one.stdout.readline().strip()) for one in (live, killed))
        killed.send_signal(signal.SIGKILL)
        killed.wait()
        assert left.is_dir()
        asyncio.run(connect())
        assert kept.is_dir()
        assert not left.exists()
        live.kill()
        live.wait()
        asyncio.run(connect())
        assert not kept.exists()


def test_directories_without_a_dead_owner_s_mark_are_left_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for name, mark in {"other-machine": "0123456789abcdef.1.2.3", "nonsense": "x"}.items():
        (tmp_path / f"dutyfree-host-{name}").mkdir()
        (tmp_path / f"dutyfree-host-{name}/owner").symlink_to(mark)
    (tmp_path / "dutyfree-host-unmarked").mkdir()
    (tmp_path / "dutyfree-host-file").write_text("")
    asyncio.run(sweep_orphans())
    assert len(list(tmp_path.iterdir())) == 4


def test_without_a_spec_it_gives_the_network_that_it_has():
    async def look() -> str:
        async with dutyfree.connect("host") as substrate, substrate.create() as box:
            return box.spec.network

    assert asyncio.run(look()) == "host"


def test_a_run_needs_no_thread_and_no_process_but_the_command():
    script = (
        "import asyncio, dutyfree\n"
        "async def main():\n"
        "    async with dutyfree.connect('host') as s, s.create() as b:\n"
        "        print(len(__import__('os').listdir('/proc/self/task')), (await b.run('cat /proc/$PPID/task/*/children')).text())\n"
        "asyncio.run(main())\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True).stdout.split()
    assert out[0] == "1"
    assert len(out) == 2


def test_nothing_that_saves_or_restores_files_is_offered_since_they_are_the_machines():
    """The conformance suite removes and overwrites /etc where these are declared: here that would be this machine's."""
    offered = driver.probe().capabilities
    assert (offered.snapshot, offered.fork, offered.reset) == (False, False, False)
