"""The host image shows the machine's programs and not one secret."""

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dutyfree.core.errors import Unavailable
from dutyfree.image.host import is_whole, plan, provide, write
from dutyfree.image.store import Store

CANARY = "canary-5f1e"

SECRETS = (
    "root/.ssh/id_ed25519",
    "root/.bash_history",
    "home/someone/.aws/credentials",
    "etc/shadow",
    "etc/shadow-",
    "etc/gshadow",
    "etc/sudoers",
    "etc/ssh/ssh_host_ed25519_key",
    "etc/ssl/private/server.key",
    "etc/ssl/certs/server.key",
    "etc/ssl/certs/.hidden",
    "etc/ssl/certs/private/inner.pem",
    "etc/gitconfig",
    "etc/pip.conf",
    "etc/npmrc",
    "etc/wgetrc",
    "etc/environment",
    "etc/profile",
    "etc/bash.bashrc",
    "etc/profile.d/token.sh",
    "etc/hosts",
    "etc/hostname",
    "etc/resolv.conf",
    "etc/machine-id",
    "etc/passwd",
    "etc/group",
    "etc/nsswitch.conf",
    "etc/apt/auth.conf",
    "etc/kubernetes/admin.conf",
    "etc/docker/daemon.json",
    "etc/java-17-openjdk/management/jmxremote.password",
    "etc/perl/token.cfg",
    "var/lib/secret",
    "var/log/auth.log",
    "opt/licence",
    "srv/data",
    "mnt/disk/file",
    "run/secrets/token",
    "tmp/leftover",
    "boot/config",
    "canary-at-the-top",
)


def put(path: Path, text: str, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(mode)


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """A merged-usr host, with a canary wherever a secret could be."""
    root = tmp_path / "host"
    for name in ("usr/bin", "usr/sbin", "usr/lib", "usr/lib64"):
        (root / name).mkdir(parents=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name in SECRETS:
        put(root / name, CANARY)
    put(root / "etc/ld.so.cache", "cache")
    put(root / "etc/services", "ssh 22/tcp\n")
    put(root / "etc/ssl/certs/ca-certificates.crt", "-----BEGIN CERTIFICATE-----\n")
    put(root / "etc/ssl/certs/combined.pem", f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}")
    put(root / "etc/ssl/certs/unreadable.pem", CANARY, 0o600)
    put(root / "etc/login.defs", CANARY, 0o640)
    (root / "etc/ssl/certs/good.pem").symlink_to("/usr/share/ca-certificates/good.crt")
    (root / "etc/ssl/certs/bad.pem").symlink_to(f"/root/{CANARY}")
    (root / "etc/ssl/certs/worse.pem").symlink_to(f"../private/{CANARY}")
    (root / "etc/alternatives").mkdir()
    (root / "etc/alternatives/editor").symlink_to("/bin/ed")
    (root / "etc/os-release").symlink_to("../usr/lib/os-release")
    os.mkfifo(root / "etc/protocols")
    return root


@pytest.fixture
def store(tmp_path: Path):
    store = Store(tmp_path / "store")
    yield store
    store.close()


def everything(layer: Path) -> dict[str, bytes]:
    found = {}
    for folder, folders, files in os.walk(layer):
        for name in (*folders, *files):
            path = Path(folder, name)
            content = (
                os.fsencode(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
            )
            found[str(path.relative_to(layer))] = content
    return found


def test_no_secret_of_the_host_appears_in_any_name_content_or_link(host: Path, store: Store):
    manifest, _ = provide(store, host)
    for name, content in everything(store.layers.path(manifest.key)).items():
        assert CANARY.encode() not in content, name
        assert CANARY not in name


def test_nothing_outside_the_allow_list_appears(host: Path, store: Store):
    manifest, _ = provide(store, host)
    names = set(everything(store.layers.path(manifest.key)))
    top = {name for name in names if "/" not in name}
    assert top == {
        *("bin", "sbin", "lib", "lib64", "dev", "etc", "home", "mnt", "opt"),
        *("proc", "root", "run", "srv", "sys", "tmp", "usr", "var"),
    }
    assert {name for name in names if name.startswith(("root/", "home/", "opt/", "srv/", "tmp/", "run/", "usr/"))} == {
        "home/agent"
    }
    assert {name.split("/")[1] for name in names if name.startswith("etc/")} == {
        *("alternatives", "ld.so.cache", "os-release", "services", "ssl", "java-17-openjdk", "perl"),
        *("bash.bashrc", "environment", "fstab", "group", "hostname", "hosts", "machine-id", "mtab"),
        *("nsswitch.conf", "passwd", "profile", "resolv.conf"),
    }


def test_public_files_are_copied_and_links_kept(host: Path, store: Store):
    manifest, _ = provide(store, host)
    found = everything(store.layers.path(manifest.key))
    assert found["etc/services"] == b"ssh 22/tcp\n"
    assert found["etc/ssl/certs/good.pem"] == b"/usr/share/ca-certificates/good.crt"
    assert found["etc/alternatives/editor"] == b"/bin/ed"
    assert found["bin"] == b"usr/bin"
    assert "etc/ssl/certs/ca-certificates.crt" in found


def test_accounts_are_generated(host: Path, store: Store):
    manifest, _ = provide(store, host)
    etc = store.layers.path(manifest.key) / "etc"
    lines = [line.split(":") for line in (etc / "passwd").read_text().splitlines()]
    assert [(line[0], line[2]) for line in lines] == [("root", "0"), ("agent", "1000"), ("nobody", "65534")]
    assert not (etc / "shadow").exists()
    assert (etc / "hostname").read_text() == "sandbox\n"
    assert (etc / "machine-id").read_text() == ""


def test_modes_are_sane_whatever_the_umask(host: Path, tmp_path: Path):
    layer = tmp_path / "layer"
    layer.mkdir()
    old = os.umask(0o077)
    try:
        write(plan(host), layer)
    finally:
        os.umask(old)
    assert stat.S_IMODE((layer / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE((layer / "root").stat().st_mode) == 0o700
    assert stat.S_IMODE((layer / "etc/passwd").stat().st_mode) == 0o644
    assert stat.S_IMODE((layer / "etc").stat().st_mode) == 0o755


def test_only_usr_is_bound_on_a_merged_host(host: Path):
    assert plan(host).binds == ((host / "usr", "/usr"),)


def test_real_directories_are_bound_on_a_host_that_is_not_merged(host: Path):
    (host / "lib").unlink()
    (host / "lib").mkdir()
    skeleton = plan(host)
    assert skeleton.binds == ((host / "usr", "/usr"), (host / "lib", "/lib"))
    assert next(entry for entry in skeleton.entries if entry.path == "lib").kind == "dir"


def test_the_key_follows_the_content_and_nothing_else(host: Path):
    before = plan(host).key
    put(host / "root/.ssh/another", "x")
    os.utime(host / "etc/services", (1, 1))
    assert plan(host).key == before
    put(host / "etc/services", "ssh 23/tcp\n")
    assert plan(host).key != before


def test_many_builders_at_once_make_one_image(host: Path, tmp_path: Path):
    stores = [Store(tmp_path / "store") for _ in range(8)]
    with ThreadPoolExecutor(8) as pool:
        keys = {manifest.key for manifest, _ in pool.map(lambda store: provide(store, host), stores)}
    assert len(keys) == 1
    assert [path.name for path in (tmp_path / "store/images").iterdir()] == list(keys)
    assert list((tmp_path / "store/building").iterdir()) == []
    assert list((tmp_path / "store/trash").iterdir()) == []


def test_a_damaged_skeleton_is_built_again(host: Path, store: Store):
    manifest, skeleton = provide(store, host)
    passwd = store.layers.path(manifest.key) / "etc/passwd"
    passwd.write_text("")
    assert not is_whole(skeleton, store.layers.path(manifest.key))
    provide(store, host)
    assert is_whole(skeleton, store.layers.path(manifest.key))


def test_an_old_skeleton_goes_unless_somebody_uses_it(host: Path, tmp_path: Path, store: Store):
    user = Store(tmp_path / "store")
    first, _ = provide(store, host)
    assert user.images.hold(first.key)
    put(host / "etc/services", "changed once\n")
    second, _ = provide(store, host)
    put(host / "etc/services", "changed twice\n")
    third, _ = provide(store, host)
    assert {manifest.key for manifest in store.images.manifests()} == {first.key, third.key}
    assert second.key not in (first.key, third.key)
    user.close()


def test_a_machine_without_usr_is_told_so(tmp_path: Path):
    with pytest.raises(Unavailable, match="usr"):
        plan(tmp_path)
