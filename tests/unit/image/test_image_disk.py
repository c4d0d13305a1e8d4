"""An image as a disk: a whole ext4 filesystem, with owners and modes, made without mounting anything."""

import subprocess
from pathlib import Path

import pytest

from dutyfree.core.errors import Misuse, Unsupported
from dutyfree.image.disk import MKFS, write_disk
from dutyfree.image.pack import export
from dutyfree.image.resolve import Image

pytestmark = pytest.mark.skipif(
    not Path(MKFS).exists(), reason="mkfs.ext4 is not installed; enable: apt-get install -y e2fsprogs"
)


def ask(disk, question):
    return subprocess.run(["/usr/sbin/debugfs", "-R", question, str(disk)], capture_output=True, check=True).stdout


@pytest.fixture
def image(tmp_path):
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    (root / "etc/name").write_bytes(b"content\n")
    (root / "etc/name").chmod(0o640)
    (root / "link").symlink_to("etc/name")
    return Image(name="x", key="0" * 64, layers=(root,))


def test_a_disk_holds_the_images_files(image, tmp_path):
    export(image, "disk", tmp_path / "disk")
    assert ask(tmp_path / "disk", "cat /etc/name") == b"content\n"
    assert b"Mode:  0640" in ask(tmp_path / "disk", "stat /etc/name")
    assert b"symlink" in ask(tmp_path / "disk", "stat /link")
    subprocess.run(["/usr/sbin/e2fsck", "-fn", str(tmp_path / "disk")], capture_output=True, check=True)


def test_a_disk_is_never_written_over(image, tmp_path):
    (tmp_path / "disk").write_bytes(b"mine")
    with pytest.raises(Misuse, match="exists"):
        export(image, "disk", tmp_path / "disk")
    assert (tmp_path / "disk").read_bytes() == b"mine"


def test_an_image_of_several_layers_is_refused(image, tmp_path):
    several = Image(name="x", key="0" * 64, layers=(*image.layers, *image.layers))
    with pytest.raises(Unsupported, match="not one directory"):
        write_disk(several, tmp_path / "disk")
    assert not (tmp_path / "disk").exists()
