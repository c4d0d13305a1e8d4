"""`dutyfree run -it` on a real pseudo-terminal: raw meanwhile, and as it was before at every end."""

import fcntl
import os
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

import pytest

from dutyfree.substrates.registry import find

PATIENCE_S = 30
PROMPT = rb"ready\d"
WAIT = "echo ready$((1)); exec sleep 300"

pytestmark = pytest.mark.skipif(
    not find("native")[0].probe().available, reason="native cannot run here: dutyfree doctor"
)


class Terminal:
    """A terminal with `dutyfree run` in the foreground."""

    def __init__(self, *words):
        self.master, self.slave = os.openpty()
        self.resize(24, 80)
        self.before = termios.tcgetattr(self.slave)
        self.seen = b""
        command = ["setsid", "--ctty", sys.executable, "-m", "dutyfree", "run", *words]
        self.process = subprocess.Popen(command, stdin=self.slave, stdout=self.slave, stderr=self.slave)

    def resize(self, rows, columns):
        fcntl.ioctl(self.slave, termios.TIOCSWINSZ, struct.pack("4H", rows, columns, 0, 0))

    def types(self, text):
        os.write(self.master, text)

    def says(self, pattern):
        """Wait until this was said; forget what was said up to it."""
        deadline = time.monotonic() + PATIENCE_S
        while not (match := re.search(pattern, self.seen)):
            assert select.select([self.master], [], [], max(0, deadline - time.monotonic()))[0], self.seen
            self.seen += os.read(self.master, 65536)
        self.seen = self.seen[match.end() :]
        return match

    def ends(self):
        code = self.process.wait(PATIENCE_S)
        assert termios.tcgetattr(self.slave) == self.before
        return code

    def is_raw(self):
        return not termios.tcgetattr(self.slave)[3] & (termios.ICANON | termios.ECHO | termios.ISIG)

    def close(self):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        for fd in (self.master, self.slave):
            if fd >= 0:
                os.close(fd)


@pytest.fixture
def terminal():
    opened = []

    def start(*words):
        opened.append(Terminal(*words))
        return opened[-1]

    yield start
    for one in opened:
        one.close()


def test_a_shell_has_a_terminal_of_our_size_that_follows_it(terminal, monkeypatch):
    monkeypatch.setenv("COLUMNS", "99")
    screen = terminal("-it")
    screen.types(b"tty; stty size; echo $TERM\r")
    screen.says(rb"/dev/pts/\d+\r\n24 80\r\n")
    screen.resize(50, 132)
    screen.types(b"until [ $(stty size | cut -d' ' -f1) = 50 ]; do sleep 0.01; done; stty size\r")
    screen.says(rb"50 132")
    screen.types(b"exit 7\r")
    assert screen.ends() == 7


def test_keys_go_to_the_command_ctrl_c_too(terminal):
    screen = terminal("-it", "--", WAIT)
    screen.says(PROMPT)
    assert screen.is_raw()
    screen.types(b"\x03")
    assert screen.ends() == 128 + signal.SIGINT


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129), (signal.SIGQUIT, 131), (signal.SIGINT, 130)]
)
def test_a_signal_ends_it_and_leaves_the_terminal_as_it_was(terminal, number, code):
    screen = terminal("-it", "--", WAIT)
    screen.says(PROMPT)
    screen.process.send_signal(number)
    assert screen.ends() == code


def test_a_deadline_leaves_the_terminal_as_it_was(terminal):
    screen = terminal("-it", "--timeout", "0.5", "--", WAIT)
    assert screen.ends() == 124


def test_a_sandbox_that_is_lost_leaves_the_terminal_as_it_was(terminal):
    screen = terminal("-it", "--", WAIT)
    screen.says(PROMPT)
    pid = screen.process.pid
    with open(f"/proc/{pid}/task/{pid}/children") as children:
        for child in children.read().split():
            os.kill(int(child), signal.SIGKILL)
    assert screen.ends() == 125


def test_a_terminal_that_is_hung_up_ends_the_command(terminal):
    screen = terminal("-it", "--", WAIT)
    screen.says(PROMPT)
    os.close(screen.slave)
    os.close(screen.master)
    screen.master = screen.slave = -1
    assert screen.process.wait(PATIENCE_S) == 129


def test_a_command_that_does_not_exist_leaves_the_terminal_as_it_was(terminal):
    screen = terminal("-it", "--", "no-such", "program")
    assert screen.ends() == 127


def test_without_a_terminal_it_is_refused():
    done = subprocess.run(
        [sys.executable, "-m", "dutyfree", "run", "-it", "--", "true"], input=b"", capture_output=True, check=False
    )
    assert (done.returncode, done.stderr) == (125, b"dutyfree: --tty: standard input is not a terminal\n")
