"""The logger `dutyfree`: silent by itself, useful at INFO and DEBUG, and not in the way of an action."""

import logging
import subprocess
import sys

from dutyfree import Spec, blocking


def test_a_connection_a_stage_and_a_lease_are_told(caplog):
    caplog.set_level(logging.DEBUG, "dutyfree")
    with blocking.connect("warm:host") as pool, pool.create(Spec(network="host")) as lease:
        before = len(caplog.records)
        assert lease.run(["true"]).ok
        told = [record.getMessage() for record in caplog.records[before:]]
        assert not [text for text in told if lease.id in text], "an action is not logged"
    said = [(record.levelname, record.getMessage()) for record in caplog.records if record.name == "dutyfree"]
    connected = [text for level, text in said if level == "INFO" and text.startswith("connected to ")]
    assert [text.split()[2] for text in connected] == ["host", "warm:host"]
    assert ("DEBUG", f"{lease.id}: created from host") in said
    assert ("DEBUG", f"{lease.id}: leased, created") in said


def test_nothing_is_printed_unless_it_is_asked_for():
    code = "from dutyfree import blocking\nwith blocking.connect('host') as s, s.create() as box: box.run('true')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert (done.stdout, done.stderr) == (b"", b"")
