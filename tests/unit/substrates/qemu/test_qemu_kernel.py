"""Finding a kernel and packing what it starts with."""

import shutil
import subprocess

import pytest

from dutyfree.core.spec import Limits
from dutyfree.substrates.qemu.control import bounds, fresh
from dutyfree.substrates.qemu.initramfs import extra, initramfs
from dutyfree.substrates.qemu.kernel import Kernel, find_kernel


def module(needs):
    return b"\x7fELF\0license=GPL\0depends=" + needs + b"\0name=x\0"


def unpack(home, version):
    package = home / "machines/kernel/some-package"
    (package / "boot").mkdir(parents=True, exist_ok=True)
    (package / "boot" / f"vmlinuz-{version}").write_bytes(b"kernel")
    drivers = package / "lib/modules" / version / "kernel"
    drivers.mkdir(parents=True)
    (drivers / "virtio_blk.ko").write_bytes(module(b"virtio,virtio_ring"))
    (drivers / "virtio_ring.ko").write_bytes(module(b"virtio"))
    (drivers / "virtio.ko").write_bytes(module(b""))
    return package


def test_there_is_no_kernel_before_one_was_fetched(tmp_path):
    assert find_kernel(tmp_path) is None


def test_modules_come_after_those_they_need(tmp_path):
    unpack(tmp_path, "6.1.0-9-cloud-amd64")
    kernel = find_kernel(tmp_path)
    assert kernel is not None
    assert [path.stem for path in kernel.modules] == ["virtio", "virtio_ring", "virtio_blk"]


def test_the_newest_kernel_is_taken(tmp_path):
    unpack(tmp_path, "6.1.0-9-cloud-amd64")
    unpack(tmp_path, "6.1.0-54-cloud-amd64")
    kernel = find_kernel(tmp_path)
    assert kernel is not None
    assert kernel.version == "6.1.0-54-cloud-amd64"


def test_the_initramfs_is_an_archive_that_cpio_reads(tmp_path):
    if shutil.which("cpio") is None:
        pytest.skip("cpio is not installed; enable: apt-get install -y cpio")
    programs = [tmp_path / name for name in ("init", "agent")]
    for path in programs:
        path.write_bytes(b"program")
    kernel = Kernel(version="6", image=tmp_path / "k", modules=())
    archive = initramfs(kernel, init=programs[0], agent=programs[1])
    listing = subprocess.run(["cpio", "-t"], input=archive, capture_output=True, check=True).stdout.decode()
    assert {"init", "agent", "modules", "extra"} <= set(listing.split())
    more = subprocess.run(["cpio", "-t"], input=extra({"etc/x": (0o600, b"1")}), capture_output=True, check=True).stdout
    assert more.decode().split() == ["extra/etc", "extra/etc/x"]


def test_the_same_programs_give_the_same_archive(tmp_path):
    path = tmp_path / "program"
    path.write_bytes(b"program")
    kernel = Kernel(version="6", image=path, modules=(path,))
    assert initramfs(kernel, init=path, agent=path) == initramfs(kernel, init=path, agent=path)


def test_no_two_machines_get_the_same_seed():
    assert fresh("a")[0] != fresh("a")[0]


def test_limits_become_orders():
    limits = Limits(cpus=0.5, memory_bytes=64 << 20, pids=16, disk_bytes=1 << 20, files=100)
    orders = bounds(limits, in_memory=True)
    assert "limit cpu.max 50000 100000" in orders
    assert "limit pids.max 18" in orders
    assert "upper size=1048576,nr_inodes=100" in orders
    assert bounds(Limits(), in_memory=True) == []


def test_files_in_memory_leave_room_under_a_memory_limit():
    limits = Limits(memory_bytes=64 << 20)
    assert f"upper size={32 << 20},nr_inodes=8192" in bounds(limits, in_memory=True)
    assert bounds(limits, in_memory=False) == [f"limit memory.max {64 << 20}"]
