"""An image out of a running podman's storage is, file by file, what podman itself shows of it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemons import detached, end, wait_for
from tree import of_export, of_store

from dutyfree.image.oci.document import this_platform
from dutyfree.image.oci.intake import import_image
from dutyfree.image.store import Store
from dutyfree.substrates.container.engine_http import ask
from dutyfree.substrates.container.engine_save import stored_image

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


def run_import(home: Path, *words: object) -> str:
    command = [sys.executable, "-m", "dutyfree.cli.main", "image", "import", *map(str, words)]
    environ = os.environ | {"DUTYFREE_HOME": str(home)}
    return subprocess.run(command, check=True, env=environ, capture_output=True, text=True).stdout


@pytest.mark.parametrize("form", ["docker-archive", "oci-archive", "docker-dir", "oci-dir"])
def test_whatever_podman_saves_is_the_image_of_its_storage(podman, tmp_path: Path, form: str):
    command, socket = podman
    (tmp_path / "fs/etc").mkdir(parents=True)
    (tmp_path / "more").mkdir()
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    subprocess.run([*command, "build", "-q", "-t", "made", tmp_path], check=True, capture_output=True)
    subprocess.run([*command, "save", "-q", f"--format={form}", "-o", tmp_path / "saved", "made"], check=True)
    home = tmp_path / "home"
    said = run_import(home, tmp_path / "saved", "--name", "saved")
    key = said.rpartition("key ")[2]
    assert run_import(home, "podman:localhost/made", "--socket", socket, "--name", "live").endswith(key)


def test_an_image_whose_layers_are_there_is_not_saved_again(podman, tmp_path: Path):
    command, socket = podman
    (tmp_path / "fs").mkdir()
    (tmp_path / "more").mkdir()
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    subprocess.run([*command, "build", "-q", "-t", "made", tmp_path], check=True, capture_output=True)
    store = Store(tmp_path / "home")
    keys, archives = [], [tmp_path / "first.tar", tmp_path / "second.tar"]
    for archive in archives:
        stored = stored_image(socket, "podman", "made", archive, reference=None, platform=this_platform())
        with stored as source:
            keys.append(import_image(store, source).key)
    store.close()
    assert keys[0] == keys[1]
    assert [archive.exists() for archive in archives] == [True, False]
