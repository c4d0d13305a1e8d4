"""A hostile archive ends below its directory, or not at all."""

import bz2
import gzip
import io
import lzma
import os
import stat
import tarfile
from pathlib import Path

import pytest

from dutyfree.core.errors import Misuse
from dutyfree.image.archive import MAX_DEPTH, unpack
from dutyfree.image.stream import decompressed, from_directory


def member(name: str, kind: bytes = tarfile.REGTYPE, **facts: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type = kind
    info.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
    for fact, value in facts.items():
        setattr(info, fact, value)
    return info


def pack(*members: tuple[tarfile.TarInfo, bytes] | tarfile.TarInfo) -> io.BytesIO:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for item in members:
            info, data = item if isinstance(item, tuple) else (item, b"")
            info.size = len(data) or info.size
            archive.addfile(info, io.BytesIO(data))
    stream.seek(0)
    return stream


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """The directory, with a witness beside it."""
    (tmp_path / "witness").write_text("untouched")
    path = tmp_path / "target"
    path.mkdir()
    return path


def test_files_directories_and_links_come_out_as_they_went_in(target: Path):
    result = unpack(
        pack(
            member("./", tarfile.DIRTYPE),
            member("./etc", tarfile.DIRTYPE, mode=0o755, mtime=1000),
            (member("./etc/passwd", mtime=2000), b"root:x:0:0\n"),
            member("./bin", tarfile.SYMTYPE, linkname="usr/bin"),
            (member("deep/er/file"), b"implicit parents"),
            member("hard", tarfile.LNKTYPE, linkname="etc/passwd"),
        ),
        target,
    )
    assert (target / "etc/passwd").read_bytes() == b"root:x:0:0\n"
    assert (target / "etc/passwd").stat().st_mtime == 2000
    assert (target / "etc").stat().st_mtime == 1000
    assert os.readlink(target / "bin") == "usr/bin"
    assert (target / "deep/er/file").read_bytes() == b"implicit parents"
    assert (target / "hard").samefile(target / "etc/passwd")
    assert result.entries == 6
    assert result.size_bytes == 27
    assert result.notes == ()


@pytest.mark.parametrize(
    "members",
    [
        [(member("../witness"), b"x")],
        [(member("a/../../witness"), b"x")],
        [(member("/tmp/absolute"), b"x")],
        [member("out", tarfile.SYMTYPE, linkname=".."), (member("out/witness"), b"x")],
        [member("out", tarfile.SYMTYPE, linkname="/etc"), (member("out/passwd"), b"x")],
        [
            member("a", tarfile.SYMTYPE, linkname="."),
            member("b", tarfile.SYMTYPE, linkname="a/.."),
            (member("b/w"), b"x"),
        ],
        [member("out", tarfile.SYMTYPE, linkname=".."), member("out", tarfile.DIRTYPE)],
        [member("hard", tarfile.LNKTYPE, linkname="../witness")],
        [member("hard", tarfile.LNKTYPE, linkname="/etc/passwd")],
        [member("out", tarfile.SYMTYPE, linkname=".."), member("hard", tarfile.LNKTYPE, linkname="out/witness")],
        [member("hard", tarfile.LNKTYPE, linkname="absent")],
        [member("hard", tarfile.LNKTYPE, linkname="hard")],
        [member("d", tarfile.DIRTYPE), member("hard", tarfile.LNKTYPE, linkname="d")],
        [member("d", tarfile.DIRTYPE), (member("d"), b"a file where a directory is")],
        [(member("f"), b"a file"), (member("f/below"), b"x")],
        [(member("etc/.wh.passwd"), b"")],
        [member("gone", tarfile.CHRTYPE, devmajor=0, devminor=0)],
        [(member("n" * 300), b"component too long")],
        [(member("d/" * (MAX_DEPTH + 1) + "f"), b"too deep")],
        [member("link", tarfile.SYMTYPE, linkname="x" * 5000)],
    ],
    ids=lambda members: members[-1][0].name[:20] if isinstance(members[-1], tuple) else members[-1].name,
)
def test_40_an_archive_that_reaches_out_or_lies_is_refused(target: Path, members: list):
    with pytest.raises(Misuse, match=r"^image: "):
        unpack(pack(*members), target)
    assert (target.parent / "witness").read_text() == "untouched"
    assert {path.name for path in target.parent.iterdir()} == {"witness", "target"}


def test_a_later_member_replaces_a_symlink_and_does_not_write_through_it(target: Path):
    unpack(pack(member("f", tarfile.SYMTYPE, linkname="../witness"), (member("f"), b"new")), target)
    assert not (target / "f").is_symlink()
    assert (target.parent / "witness").read_text() == "untouched"


def test_41_devices_fifos_and_setuid_bits_are_left_out_with_a_note(target: Path):
    result = unpack(
        pack(
            member("dev/sda", tarfile.BLKTYPE, devmajor=8, devminor=0),
            member("dev/null", tarfile.CHRTYPE, devmajor=1, devminor=3),
            member("pipe", tarfile.FIFOTYPE),
            (member("su", mode=0o4755), b"#!"),
            member("mail", tarfile.DIRTYPE, mode=0o2775),
        ),
        target,
    )
    assert result.notes == ("2 devices left out", "1 fifos left out", "2 setuid or setgid bits dropped")
    assert sorted(path.name for path in target.iterdir()) == ["mail", "su"]
    assert stat.S_IMODE((target / "su").stat().st_mode) == 0o755
    assert stat.S_IMODE((target / "mail").stat().st_mode) == 0o775


def test_a_sticky_bit_and_a_read_only_directory_with_content_survive(target: Path):
    unpack(
        pack(
            member("tmp", tarfile.DIRTYPE, mode=0o1777),
            member("locked", tarfile.DIRTYPE, mode=0o555),
            (member("locked/file", mode=0o400), b"x"),
        ),
        target,
    )
    assert stat.S_IMODE((target / "tmp").stat().st_mode) == 0o1777
    assert stat.S_IMODE((target / "locked").stat().st_mode) == 0o555
    (target / "locked").chmod(0o755)


@pytest.mark.skipif(os.geteuid() != 0, reason="owners are applied for root only: sudo make test")
def test_owners_are_kept_for_root_and_huge_ones_become_nobody(target: Path):
    result = unpack(pack((member("mine", uid=33, gid=44), b""), (member("far", uid=1 << 20, gid=5), b"")), target)
    assert ((target / "mine").stat().st_uid, (target / "mine").stat().st_gid) == (33, 44)
    assert (target / "far").stat().st_uid == 65534
    assert result.notes == ("1 owners beyond 65535 made nobody",)


def test_extended_attributes_are_ignored(target: Path):
    headers = {"SCHILY.xattr.trusted.overlay.opaque": "y", "SCHILY.xattr.user.overlay.redirect": "/etc"}
    unpack(pack(member("d", tarfile.DIRTYPE, pax_headers=headers)), target)
    assert os.listxattr(target / "d") == []


def test_names_that_are_not_utf8_are_kept(target: Path):
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w", format=tarfile.GNU_FORMAT) as archive:
        archive.addfile(member(os.fsdecode(b"caf\xe9")), io.BytesIO())
    stream.seek(0)
    unpack(stream, target)
    assert os.listdir(os.fsencode(target)) == [b"caf\xe9"]


def test_42_an_archive_over_the_caps_is_refused(target: Path):
    with pytest.raises(Misuse, match="over the cap of 1000 bytes"):
        unpack(pack((member("big"), b"x" * 1001)), target, max_bytes=1000)
    with pytest.raises(Misuse, match="over the cap of 2 entries"):
        unpack(pack(*(member(str(n)) for n in range(3))), target, max_entries=2)


def test_a_link_that_says_it_is_sparse_is_a_link(target: Path):
    holes = {"GNU.sparse.map": "0,0"}
    unpack(pack(member("link", tarfile.SYMTYPE, linkname="a/b", pax_headers=holes)), target)
    assert os.readlink(target / "link") == "a/b"


def test_44_a_sparse_file_that_claims_a_terabyte_is_refused_before_it_is_written(target: Path):
    headers = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": str(1 << 40)}
    with pytest.raises(Misuse, match="over the cap"):
        unpack(pack((member("sparse", pax_headers=headers), b"0\n" + b"\0" * 510)), target)
    assert list(target.iterdir()) == []


def test_a_header_that_claims_gigabytes_is_not_read_into_memory(target: Path):
    header = member("x", tarfile.XHDTYPE, size=1 << 30).tobuf()
    with pytest.raises(Misuse, match="header is too large"):
        unpack(io.BytesIO(header + b"\0" * 4096), target)


@pytest.mark.parametrize("cut", [512, 700, 1024, 2000])
def test_an_archive_cut_short_is_refused(target: Path, cut: int):
    whole = pack((member("a"), b"x" * 400), (member("b"), b"y" * 400)).getvalue()
    with pytest.raises(Misuse):
        unpack(io.BytesIO(whole[:cut]), target)


def test_a_damaged_header_is_not_taken_for_the_end(target: Path):
    whole = bytearray(pack((member("a"), b"x" * 400), (member("b"), b"y" * 400)).getvalue())
    whole[1024 + 150] ^= 0xFF
    with pytest.raises(Misuse, match="damaged"):
        unpack(io.BytesIO(bytes(whole)), target)


@pytest.mark.parametrize(
    "junk", [b"", b"not a tar", b"\0" * 100, b"\x1f\x8b" + b"junk" * 10, b"BZh9junk", b"\xfd7zXZ\0junk"]
)
def test_what_is_no_archive_is_refused(target: Path, junk: bytes):
    with pytest.raises(Misuse, match="not a readable rootfs archive"):
        unpack(decompressed(io.BytesIO(junk)), target)


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress, bz2.compress])
def test_compression_is_told_by_content(target: Path, compress):
    unpack(decompressed(io.BytesIO(compress(pack((member("f"), b"data" * 5000)).getvalue()))), target)
    assert (target / "f").read_bytes() == b"data" * 5000


def test_a_directory_streams_into_the_same_tree(tmp_path: Path, target: Path):
    source = tmp_path / "source"
    (source / "etc").mkdir(parents=True)
    (source / "etc/a").write_bytes(b"a" * 300_000)
    (source / "link").symlink_to("etc/a")
    os.link(source / "etc/a", source / "hard")
    with from_directory(source) as stream:
        unpack(stream, target)
    assert (target / "etc/a").read_bytes() == b"a" * 300_000
    assert (target / "hard").samefile(target / "etc/a")
    assert os.readlink(target / "link") == "etc/a"


def test_a_reader_that_gives_up_ends_the_writer(tmp_path: Path, target: Path):
    source = tmp_path / "source"
    source.mkdir()
    (source / "big").write_bytes(b"x" * 3_000_000)
    with pytest.raises(Misuse, match="cap"), from_directory(source) as stream:
        unpack(stream, target, max_bytes=10)
