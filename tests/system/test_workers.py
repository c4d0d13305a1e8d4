"""Worker processes: forked with a substrate open, each connects for itself and disturbs nobody."""

import multiprocessing
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

from dutyfree import Misuse, blocking
from dutyfree.substrates.registry import find

WORKERS = 8
EPISODES = 5

native = pytest.mark.skipif(
    not find("native")[0].probe().available, reason="needs the native substrate; see `dutyfree doctor`"
)


def episode(substrate, word):
    with substrate.create() as box:
        return box.run(["echo", word]).text().strip()


def work(inherited, number, queue):
    """What a data loader's worker does: try what it was given, then connect."""
    try:
        episode(inherited, "inherited")
    except Misuse as error:
        said = error.message
    inherited.close()
    with blocking.connect(inherited.name) as own:
        queue.put((said.rpartition(": ")[2], {episode(own, f"{number}.{i}") for i in range(EPISODES)}))


@native
@pytest.mark.parametrize("name", ["native", "warm:native"])
def test_eight_forked_workers_connect_while_their_parent_goes_on(name):
    fork = multiprocessing.get_context("fork")
    queue = fork.SimpleQueue()
    with blocking.connect(name) as substrate:
        workers = [fork.Process(target=work, args=(substrate, number, queue)) for number in range(WORKERS)]
        for worker in workers:
            worker.start()
        with ThreadPoolExecutor(8) as pool:
            words = [str(i) for i in range(32)]
            assert list(pool.map(lambda word: episode(substrate, word), words)) == words
        answers = [queue.get() for _ in workers]
        for worker in workers:
            worker.join()
        assert episode(substrate, "after") == "after"
    assert {said for said, _ in answers} == {"connect in this process"}
    made = [word for _, words in answers for word in words]
    assert sorted(made) == sorted(f"{number}.{i}" for number in range(WORKERS) for i in range(EPISODES))


LEAVES = """
import os, sys
from dutyfree import blocking
with blocking.connect(sys.argv[1]) as substrate, substrate.create() as box, box.shell() as shell:
    child = os.fork()
    if child == 0:
        sys.exit(0)  # through every block above, and Python's whole end
    assert os.waitpid(child, 0)[1] == 0
    print(box.run(["echo", "box"]).text() + shell.run("echo shell").text() + substrate.create().run("echo new").text())
"""


@pytest.mark.parametrize("name", ["host", pytest.param("native", marks=native)])
def test_a_forked_child_may_leave_its_parents_blocks(name):
    done = subprocess.run(
        [sys.executable, "-c", LEAVES, name], capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stdout.split(), done.stderr) == (0, ["box", "shell", "new"], "")


@pytest.mark.parametrize("name", ["host", pytest.param("native", marks=native)])
def test_a_connection_cannot_be_pickled(name):
    import pickle

    with blocking.connect(name) as substrate, substrate.create() as box:
        for thing in (substrate, box):
            with pytest.raises(Misuse, match="connect there"):
                pickle.dumps(thing)
