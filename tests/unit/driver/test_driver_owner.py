import os
import subprocess

from dutyfree.driver.owner import is_local, is_orphan, owner_mark


def test_a_live_owner_is_no_orphans_owner():
    assert not is_orphan(owner_mark())


def test_a_dead_owners_mark_is_an_orphans():
    child = subprocess.Popen(["sleep", "60"])
    mark = owner_mark(child.pid)
    assert not is_orphan(mark)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_orphan(mark), "also while it is a zombie"
    child.wait()
    assert is_orphan(mark)


def test_a_later_process_with_the_same_number_is_another_owner():
    boot, space, pid, start = owner_mark().split(".")
    assert is_orphan(f"{boot}.{space}.{pid}.{int(start) - 1}")


def test_what_another_machine_made_is_never_judged():
    boot, space, _, _ = owner_mark().split(".")
    for mark in ("", "x", "1.2.3", f"{boot}.{space}.not-a-pid.5", f"0{boot[1:]}x.{space}.1.1", f"{boot}.1.1.1"):
        assert not is_orphan(mark)
        assert not is_local(mark)
    assert is_local(owner_mark())


def test_a_mark_fits_into_any_label():
    mark = owner_mark()
    assert len(mark) <= 63
    assert all(char.isalnum() or char in "-." for char in mark)
