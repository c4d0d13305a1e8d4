"""Whose service it is: root's, one's own, or that of an ordinary user whom root names. What podman needs of such a user is checked here."""

from __future__ import annotations

import os
import pwd
import shutil
from dataclasses import dataclass
from pathlib import Path

from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.image.store import Store
from dutyfree.substrates.boot import agent_program

_DRIVER = "podman"
_IDS = "100000-165535"


@dataclass(frozen=True, kw_only=True, slots=True)
class Account:
    """Made by `find`."""

    name: str
    uid: int
    gid: int
    home: str

    @classmethod
    def find(cls, name: str | None) -> Account:
        """The user of that name, or whoever we are."""
        try:
            entry = pwd.getpwuid(os.geteuid()) if name is None else pwd.getpwnam(name)
        except KeyError as error:
            if name is not None:
                raise Misuse(f"there is no user {name!r}", field="user", driver=_DRIVER) from error
            what = f"uid {os.geteuid()} has no name and no home in /etc/passwd, which podman needs"
            raise Unavailable(
                what, enable=f"useradd --uid {os.geteuid()} --create-home NAME", driver=_DRIVER
            ) from error
        found = cls(name=entry.pw_name, uid=entry.pw_uid, gid=entry.pw_gid, home=entry.pw_dir)
        if found.is_other and os.geteuid() != 0:
            raise Misuse(f"only root runs a service of {name!r}", field="user", driver=_DRIVER)
        if found.rootless:
            found.check()
        return found

    @property
    def rootless(self) -> bool:
        """Its containers have no root of the machine behind them."""
        return self.uid != 0

    @property
    def is_other(self) -> bool:
        """It is not us."""
        return self.uid != os.geteuid()

    @property
    def storage(self) -> Path:
        """Where images stay from one service to the next: apart for each user, whose files nobody else may remove."""
        return Store.default().root / (f"podman-{self.name}" if self.is_other else "podman")

    @property
    def lock(self) -> Path:
        """Shared by all services on that storage; never in a directory of somebody else."""
        return self.storage.with_suffix(".lock") if self.is_other else self.storage / "lock"

    @property
    def prefix(self) -> list[str]:
        """Starts a program as this user, which dies with us."""
        become = [f"--reuid={self.uid}", f"--regid={self.gid}", "--init-groups"] if self.is_other else []
        return ["setpriv", *become, "--pdeathsig", "TERM"]

    def environment(self, runtime: Path) -> dict[str, str]:
        """Ours, or what a login of theirs would have; with a runtime directory that is the service's own."""
        if not self.rootless:
            return dict(os.environ)
        path = os.environ.get("PATH", os.defpath)
        given = {"HOME": self.home, "PATH": f"{path}:/usr/sbin:/sbin"} if self.is_other else dict(os.environ)
        return {**given, "XDG_RUNTIME_DIR": str(runtime)}

    def give(self, *paths: Path) -> None:
        """Let them have what we made."""
        for path in paths if self.is_other else ():
            os.chown(path, self.uid, self.gid)

    def check(self) -> None:
        """`Unavailable` with the command for what is missing."""
        if shutil.which("newuidmap") is None:
            raise Unavailable("podman without root needs newuidmap", enable="apt-get install -y uidmap", driver=_DRIVER)
        if not all(self._has_range(path) for path in ("/etc/subuid", "/etc/subgid")):
            raise Unavailable(
                f"{self.name} has no subordinate ids",
                enable=f"usermod --add-subuids {_IDS} --add-subgids {_IDS} {self.name}",
                driver=_DRIVER,
            )
        program = agent_program(_DRIVER).resolve()
        if self.is_other and not all(one.stat().st_mode & 0o001 for one in (program, *program.parents)):
            raise Unavailable(f"{self.name} cannot read {program}", enable="move the package elsewhere", driver=_DRIVER)

    def _has_range(self, path: str) -> bool:
        try:
            lines = Path(path).read_text().splitlines()
        except FileNotFoundError:
            return False
        return any(line.partition(":")[0] in (self.name, str(self.uid)) for line in lines)
