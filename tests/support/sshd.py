"""A private sshd on the loopback interface, with keys of its own: for tests of what logs in to other machines.

with private_sshd(directory) as options: connect("ssh", **options)
"""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from support.daemons import detached, end, wait_for

_CONFIG = """\
ListenAddress 127.0.0.1
Port {port}
HostKey {home}/host
AuthorizedKeysFile {home}/key.pub
PidFile none
PasswordAuthentication no
StrictModes no
UsePAM no
MaxSessions 100
"""


@contextmanager
def private_sshd(home: Path) -> Iterator[dict[str, str]]:
    """Options for the `ssh` driver with which this very machine is reached."""
    program = shutil.which("sshd") or "/usr/sbin/sshd"
    if os.geteuid() != 0 or not os.path.exists(program) or not shutil.which("ssh"):
        pytest.skip("needs root and sshd; enable: apt-get install -y openssh-server openssh-client")
    for name in ("host", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", home / name], check=True)
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    (home / "sshd").write_text(_CONFIG.format(port=port, home=home))
    (home / "known").write_text(f"[127.0.0.1]:{port} {(home / 'host.pub').read_text()}")
    (home / "config").write_text(f"UserKnownHostsFile {home}/known\nIdentitiesOnly yes\nIdentityFile {home}/key\n")
    os.makedirs("/run/sshd", mode=0o755, exist_ok=True)  # stays: every sshd of the machine needs it while it runs
    pid = detached([program, "-D", "-e", "-f", str(home / "sshd")], home / "log")
    try:
        wait_for(lambda: _answers(port), what="sshd", log=home / "log")
        yield {"host": "root@127.0.0.1", "port": str(port), "config": str(home / "config")}
    finally:
        end(pid)


def _answers(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0
