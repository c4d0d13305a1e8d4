"""An image out of a running podman's storage is, file by file, what podman itself shows of it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemons import detached, end, wait_for
from tree import of_export, of_store

from dutyfree.image.store import Store
from dutyfree.substrates.engine.options import ask

pytestmark = pytest.mark.slow("container engines and runtimes")

DOCKERFILE = """
FROM scratch
COPY fs /
COPY --chown=7:8 more /etc
ENV GREETING=hello
WORKDIR /made/by/workdir
"""


@pytest.fixture
def podman(tmp_path: Path):
    """The command line of a podman with a storage of its own, and the socket of its service."""
    if os.geteuid() != 0 or not shutil.which("podman"):
        pytest.skip("no podman for root here; enable: make substrates")
    # Short: the path of a socket has 108 bytes.
    home = Path("/run") / f"dutyfree-podman-{os.getpid()}-image"
    home.mkdir()
    command = ["podman", f"--root={home}/root", f"--runroot={home}/run", "--storage-driver=vfs"]
    try:
        pid = detached([*command, "system", "service", "--time=0", f"unix://{home}/sock"], home / "log")
        try:
            wait_for(lambda: isinstance(ask(f"{home}/sock", "/version"), dict), what="podman", log=home / "log")
            yield command, f"{home}/sock"
        finally:
            end(pid)
    finally:
        shutil.rmtree(home)


def test_an_image_of_podmans_storage_is_what_podman_exports(podman, tmp_path: Path):
    command, socket = podman
    for name in ("fs/etc", "fs/bin", "more/deep"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "fs/etc/a").write_text("1")
    (tmp_path / "fs/bin/tool").write_bytes(b"x" * 100_000)
    (tmp_path / "fs/bin/tool").chmod(0o4711)
    (tmp_path / "fs/bin/link").symlink_to("tool")
    (tmp_path / "more/deep/b").write_text("2")
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    subprocess.run([*command, "build", "-q", "-t", "made", tmp_path], check=True, capture_output=True)
    subprocess.run([*command, "create", "--name", "one", "made", "/bin/tool"], check=True, capture_output=True)
    subprocess.run([*command, "export", "-o", tmp_path / "export.tar", "one"], check=True, capture_output=True)
    environ = os.environ | {"DUTYFREE_HOME": str(tmp_path / "home")}
    words = ["image", "import", "podman:localhost/made", "--socket", socket, "--name", "mine"]
    subprocess.run([sys.executable, "-m", "dutyfree.cli.main", *words], check=True, env=environ, capture_output=True)
    store = Store(tmp_path / "home")
    manifest = store.manifest(store.named("mine"))
    theirs = of_export(tmp_path / "export.tar")
    # A container's working directory is made when it starts; podman has not started this one.
    ours = {
        name: facts
        for name, facts in of_store(store, manifest).items()
        if not name.startswith("made") or name in theirs
    }
    assert ours == theirs
    assert ours["etc/deep/b"][2:4] == (7, 8)
    assert (manifest.env["GREETING"], manifest.cwd) == ("hello", "/made/by/workdir")
