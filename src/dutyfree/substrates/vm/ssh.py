"""`ssh` as the exec call of a machine: one connection per action, as people reach a cloud VM.

The server is Debian's own, brought by the initramfs so that the image stays as it is:

    <home>/machines/ssh/usr/sbin/sshd, …      the unpacked packages openssh-server and libwrap0, by `make substrates`

Keys are made for each substrate and known to nobody else. Refuses an image without what sshd is linked to.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from dutyfree.core.checkout import make
from dutyfree.core.errors import DriverError, SandboxLost, Unavailable
from dutyfree.driver.exec_call import STDERR, ExecCall, ExecEnd, Sink
from dutyfree.driver.program import stream_program
from dutyfree.substrates.qemu.machine import Machine

ORDERS = (
    "ethernet",
    "call /bin/mkdir -p /run/sshd",
    "run /usr/sbin/sshd -D -f /etc/dutyfree-ssh/config",
    "listens 22",
)
"""Once the last is done, the server can be reached."""

_CONFIG = b"""Port 22
HostKey /etc/dutyfree-ssh/host
AuthorizedKeysFile /etc/dutyfree-ssh/authorized
PermitRootLogin prohibit-password
PasswordAuthentication no
UsePAM no
UseDNS no
StrictModes no
MaxStartups 1000
PidFile none
PrintMotd no
"""
_ACCOUNT = "sshd:x:65533:65534::/run/sshd:/usr/sbin/nologin"
_FORWARD = re.compile(r"HOST_FORWARD\]\s+\d+\s+127\.0\.0\.1\s+(\d+)")
_REFUSED = "dutyfree-ssh refused: "
_LOST = 255
_NO_SERVER = re.compile(rb"ssh: connect to|Connection (closed|reset|timed out)|kex_exchange_identification|Broken pipe")


def unpacked(home: Path) -> Path:
    """Directory of the server's unpacked packages."""
    return home / "machines" / "ssh"


def obstacle(home: Path) -> str | None:
    """Reason why a virtual machine cannot be reached by ssh here; None: it can."""
    if shutil.which("ssh") is None or shutil.which("ssh-keygen") is None:
        return "the ssh client is not installed"
    if not (unpacked(home) / "usr/sbin/sshd").exists():
        return "no sshd for guests was fetched yet"
    return None


@dataclass(frozen=True, kw_only=True, slots=True)
class Keys:
    """The client's key and the server's, in a directory of their own."""

    path: Path

    @classmethod
    def make(cls, path: Path) -> Keys:
        """Two fresh pairs."""
        path.mkdir(mode=0o700)
        for name in ("client", "host"):
            command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "dutyfree", "-f", str(path / name)]
            made = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
            if made.returncode != 0:
                raise DriverError(f"ssh-keygen failed: {made.stderr.strip()}", step="create")
        (path / "known").write_text(f"dutyfree {(path / 'host.pub').read_text()}")
        return cls(path=path)

    def files(self, home: Path, layers: Sequence[Path]) -> dict[str, tuple[int, bytes]]:
        """Files that the guest's root needs to be reached by ssh."""
        packages = unpacked(home)
        library = next(packages.glob("usr/lib/*/libwrap.so.0"), None) or next(packages.glob("lib/*/libwrap.so.0"), None)
        if library is None:
            raise Unavailable("no sshd for guests was fetched yet", enable=make("substrates"))
        accounts = _text(layers, "etc/passwd")
        return {
            "usr/sbin/sshd": (0o755, (packages / "usr/sbin/sshd").read_bytes()),
            f"usr/lib/{library.parent.name}/libwrap.so.0": (0o644, library.read_bytes()),
            "etc/passwd": (0o644, f"{accounts.rstrip()}\n{_ACCOUNT}\n".encode(errors="surrogateescape")),
            "etc/dutyfree-ssh/config": (0o644, _CONFIG),
            "etc/dutyfree-ssh/host": (0o600, (self.path / "host").read_bytes()),
            "etc/dutyfree-ssh/authorized": (0o644, (self.path / "client.pub").read_bytes()),
        }


async def forwarded_port(machine: Machine) -> int:
    """The port of our loopback that leads to the machine's sshd: QEMU chose it."""
    said = await machine.monitor.call("human-monitor-command", {"command-line": "info usernet"})
    match = _FORWARD.search(str(said))
    if match is None:
        raise DriverError("QEMU names no forwarded port", driver=machine.driver, step="create")
    return int(match[1])


@dataclass(frozen=True, kw_only=True, slots=True)
class Ssh:
    """The way to one machine."""

    keys: Keys
    port: int
    sandbox: str

    async def execute(self, wanted: ExecCall, sink: Sink) -> ExecEnd:
        """An `Execute` for users by number: a connection, a command, its end."""
        heard = _Heard(sink)
        code = (await stream_program([*self._client(), remote(wanted)], wanted, heard)).code
        if code == _LOST and _NO_SERVER.search(heard.errors):
            raise SandboxLost(f"ssh: {heard.errors.decode(errors='replace').strip()}", sandbox=self.sandbox)
        words = heard.errors.decode(errors="replace")
        if code == _LOST and words.startswith(_REFUSED):
            return ExecEnd(exit_code=code, refusal=words.removeprefix(_REFUSED))
        return ExecEnd(exit_code=code)

    def _client(self) -> list[str]:
        settings = {
            "BatchMode": "yes",
            "ControlMaster": "no",
            "HostKeyAlias": "dutyfree",
            "IdentitiesOnly": "yes",
            "LogLevel": "ERROR",
            "StrictHostKeyChecking": "yes",
            "UserKnownHostsFile": str(self.keys.path / "known"),
            "GlobalKnownHostsFile": "/dev/null",
        }
        flags = [part for name, value in settings.items() for part in ("-o", f"{name}={value}")]
        return [
            "ssh",
            "-F",
            "none",
            "-T",
            *flags,
            "-i",
            str(self.keys.path / "client"),
            "-p",
            str(self.port),
            "root@127.0.0.1",
        ]


def remote(wanted: ExecCall) -> str:
    """The command, of a user by number, as the machine's shell takes it.

    In the background of that shell: so it says nothing of a signal itself.
    """
    words = ["env", "--default-signal=INT,QUIT", *(f"{name}={value}" for name, value in wanted.env.items())]
    if wanted.user:
        uid, _, gid = wanted.user.partition(":")
        words = ["setpriv", f"--reuid={uid}", f"--regid={gid}", "--clear-groups", "--", *words]
    command = shlex.join([*words, *wanted.argv])
    place = shlex.quote(wanted.cwd or "/")
    refusal = shlex.quote(f"{_REFUSED}chdir to cwd")
    return f"cd -- {place} 2>/dev/null || {{ echo {refusal} >&2; exit {_LOST}; }}; {command} <&0 & wait $!"


class _Heard:
    """Passes output on; keeps the beginning of what went to stderr."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.errors = b""

    async def add(self, stream: int, data: bytes) -> None:
        if stream == STDERR and len(self.errors) < 1024:
            self.errors += data[:1024]
        await self._sink.add(stream, data)


def _text(layers: Sequence[Path], path: str) -> str:
    for layer in layers:
        if (layer / path).is_file() and not os.path.islink(layer / path):
            return (layer / path).read_text(errors="surrogateescape")
    return "root:x:0:0:root:/root:/bin/sh"
