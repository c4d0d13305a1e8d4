"""Arms one named point of `dutyfree.core.fault` in this process, which is one of its own: hooks cannot be removed.

arm("dutyfree.warm.reset", 2, "kill-agents", said=…)     at the second passing

What: an errno (ENOSPC) or an error of ours (DriverError), raised there · kill, stop: this process · kill-spawner, stop-spawner,
kill-agents, stop-agents: those below it, what was stopped goes on half a second later · delay: nothing moves here for half a second.
"""

import errno
import os
import signal
import sys
import threading
import time

from family import born, descendants, spawners

import dutyfree

PAUSE_S = 0.5
PROCESS_FAULTS = ("kill", "stop", "delay", "kill-spawner", "stop-spawner", "kill-agents", "stop-agents")


def agents():
    """Everything below the spawner: agents, what waits to become one, and what they run."""
    return [pid for spawner in spawners(os.getpid()) for pid in descendants(spawner)]


def family():
    """Everything below this process, each with its birth."""
    return [[pid, born(pid)] for pid in descendants(os.getpid())]


def send(pids, number):
    for pid in pids:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            continue


def strike(what):
    if what == "delay":
        time.sleep(PAUSE_S)
    elif what in ("kill", "stop"):
        os.kill(os.getpid(), signal.SIGKILL if what == "kill" else signal.SIGSTOP)
    elif what in PROCESS_FAULTS:
        act, _, whom = what.partition("-")
        pids = spawners(os.getpid()) if whom == "spawner" else agents()
        send(pids, signal.SIGKILL if act == "kill" else signal.SIGSTOP)
        if act == "stop":
            threading.Timer(PAUSE_S, send, (pids, signal.SIGCONT)).start()
    elif what in errno.__dict__:
        number = getattr(errno, what)
        raise OSError(number, os.strerror(number))
    else:
        raise getattr(dutyfree, what)("a fault", driver="faulty")


def arm(point, number, what, said):
    """`said` is told when it happens, with the point's arguments."""
    passed = 0

    def hook(event, arguments):
        nonlocal passed
        if event == point:
            passed += 1
            if passed == number:
                said(point=point, what=what, about=[str(word) for word in arguments], family=family())
                strike(what)

    sys.addaudithook(hook)
