"""An image that a real Docker engine built is, file by file, what the engine itself shows of it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.daemons import Missing, docker_socket
from support.registry import registry
from tree import of_export, of_store

from dutyfree.core.spec import Spec
from dutyfree.image.export import rootfs_tar
from dutyfree.image.oci.document import this_platform
from dutyfree.image.oci.intake import import_image, import_path
from dutyfree.image.oci.reference import parse_reference
from dutyfree.image.oci.registry import Registry
from dutyfree.image.resolve import Image, resolve
from dutyfree.image.store import Manifest, Store
from dutyfree.substrates.registry import connect

pytestmark = pytest.mark.slow("container engines and runtimes")

TAG = "dutyfree-test:layers"
DOCKERFILE = r"""
FROM scratch
ADD base.tar /
RUN mkdir -p /a/b/c /gone/deep /opaque/old /swap /var/tmp && echo 1 >/a/b/c/file && echo 1 >/gone/deep/file \
 && echo 1 >/opaque/old/file && echo 1 >/swap/file && chmod 2770 /a/b && chown 1000:1001 /a/b/c/file \
 && chmod 1777 /var/tmp && ln -s /a/b link && ln -s nowhere dangling && ln /a/b/c/file /a/hard && mkfifo /pipe \
 && chmod 4755 /bin/su-like && echo x >"/a/na me" && touch -d '2001-02-03 04:05:06' /a/b
RUN rm -rf /gone /opaque && mkdir /opaque && echo 2 >/opaque/new && rm /a/hard && rm -rf /swap && echo 2 >/swap
RUN echo 3 >>/a/b/c/file && chmod 700 /a && rm /swap && mkdir /swap && echo 3 >/swap/again && rm link && mkdir link \
 && echo 3 >/link/in && chown 7 /opaque && ln /a/b/c/file /a/again
ENV GREETING="hello world" EMPTY=
WORKDIR /made/by/workdir
USER 1000:1001
ENTRYPOINT ["/bin/sh", "-c"]
CMD ["true"]
"""


@pytest.fixture(scope="module")
def engine():
    if not shutil.which("docker"):
        pytest.skip("the docker command is not installed; enable: make substrates")
    if not shutil.which("busybox"):
        pytest.skip("busybox is not installed; enable: apt-get install -y busybox-static")
    if os.geteuid() != 0:
        pytest.skip("owners are root's to give: sudo make test")
    try:
        with docker_socket() as path:
            yield path
    except Missing as error:
        pytest.skip(str(error))


def docker(engine: str, *words: str, **options) -> bytes:
    environ = os.environ | {"DOCKER_HOST": f"unix://{engine}", "DOCKER_BUILDKIT": "0"}
    return subprocess.run(["docker", *words], check=True, capture_output=True, env=environ, **options).stdout


@pytest.fixture(scope="module")
def built(engine: str, tmp_path_factory):
    """An image of four layers and what `docker export` shows of a container of it."""
    root = tmp_path_factory.mktemp("base")
    for name in ("bin", "dev", "etc", "proc", "sys", "tmp"):
        (root / "fs" / name).mkdir(parents=True)
    shutil.copy(shutil.which("busybox"), root / "fs/bin/busybox")
    for name in ("sh", "mkdir", "rm", "ln", "chmod", "chown", "touch", "mkfifo", "true", "cat", "id", "pwd", "env"):
        (root / "fs/bin" / name).symlink_to("busybox")
    (root / "fs/bin/su-like").write_bytes(b"#!/bin/sh\n")
    os.setxattr(root / "fs/bin/su-like", "security.capability", bytes.fromhex("0100000200040000") + bytes(12))
    subprocess.run(
        ["tar", "--xattrs", "--xattrs-include=*", "-C", root / "fs", "-cf", root / "base.tar", "."], check=True
    )
    (root / "Dockerfile").write_text(DOCKERFILE)
    docker(engine, "build", "--network=none", "-t", TAG, str(root))
    name = docker(engine, "create", TAG).decode().strip()
    try:
        (root / "export.tar").write_bytes(docker(engine, "export", name))
    finally:
        docker(engine, "rm", name)
    yield root / "export.tar"
    docker(engine, "rmi", TAG)


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / "store")
    yield store
    store.close()


def check(store: Store, manifest: Manifest, export: Path) -> None:
    ours, theirs = of_store(store, manifest), of_export(export)
    assert ours.keys() == theirs.keys()
    assert {name: (ours[name], theirs[name]) for name in ours if ours[name] != theirs[name]} == {}
    assert theirs["a/b/c/file"][:4] == ("f", 0o644, 1000, 1001)
    assert theirs["opaque"][2] == 7
    assert (manifest.cwd, manifest.user) == ("/made/by/workdir", "1000:1001")
    assert manifest.env["GREETING"] == "hello world"
    assert manifest.entrypoint == ("/bin/sh", "-c", "true")


def test_a_saved_image_is_what_the_engine_exports(engine: str, built: Path, store: Store, tmp_path: Path):
    docker(engine, "save", "-o", str(tmp_path / "saved.tar"), TAG)
    manifest = import_path(store, tmp_path / "saved.tar")
    assert len(manifest.layers) >= 4
    check(store, manifest, built)


def test_an_image_of_a_running_engine_is_imported_by_its_name(engine: str, built: Path, store: Store):
    environ = os.environ | {"DUTYFREE_HOME": str(store.root), "DOCKER_HOST": f"unix://{engine}"}
    command = [sys.executable, "-m", "dutyfree.cli.main", "image", "import", f"docker:{TAG}", "--name", "mine"]
    subprocess.run(command, check=True, env=environ, capture_output=True)
    check(store, store.manifest(store.named("mine")), built)
    failed = subprocess.run(
        [*command[:-3], "docker:absent:1", "--name", "other"], env=environ, capture_output=True, check=False
    )
    assert failed.returncode == 2
    assert b"no image" in failed.stderr


def test_an_image_that_the_engine_pushed_is_pulled_the_same(engine: str, built: Path, store: Store):
    try:
        with registry() as host:
            name = f"{host}/team/layers:1"
            docker(engine, "tag", TAG, name)
            docker(engine, "push", name)
            docker(engine, "rmi", name)
            with Registry(parse_reference(name), store) as source:
                manifest = import_image(store, source.find(this_platform()))
    except Missing as error:
        pytest.skip(str(error))
    check(store, manifest, built)


async def _look(store: Store) -> tuple[bytes, bytes]:
    async with connect("native") as substrate, substrate.create(Spec(image="mine")) as box:
        first = await box.run(
            "pwd; id -u; id -g; echo $GREETING; cat /link/in /swap/again /opaque/new; ls -A /opaque /a", user=None
        )
        second = await box.run(["/bin/busybox", "ls", "-A", "/"], user="0")
        return first.stdout + first.stderr, second.stdout


def test_a_native_sandbox_starts_from_it_where_and_as_whom_it_says(
    engine: str, built: Path, store: Store, tmp_path: Path, monkeypatch
):
    import asyncio

    docker(engine, "save", "-o", str(tmp_path / "saved.tar"), TAG)
    store.names.give("mine", import_path(store, tmp_path / "saved.tar").key)
    monkeypatch.setenv("DUTYFREE_HOME", str(store.root))
    told, listing = asyncio.run(_look(store))
    assert told.splitlines()[:7] == [b"/made/by/workdir", b"1000", b"1001", b"hello world", b"3", b"3", b"2"]
    assert b"gone" not in listing.split()


def test_what_is_exported_again_is_the_same_tree(engine: str, built: Path, store: Store, tmp_path: Path):
    docker(engine, "save", "-o", str(tmp_path / "saved.tar"), TAG)
    store.names.give("mine", import_path(store, tmp_path / "saved.tar").key)
    image: Image = resolve("mine", store)
    with (tmp_path / "flat.tar").open("wb") as file:
        for piece in rootfs_tar(image):
            file.write(piece)
    theirs = {name: facts[:6] for name, facts in of_export(built).items() if facts[0] != "p"}
    assert {name: facts[:6] for name, facts in of_export(tmp_path / "flat.tar").items()} == theirs
