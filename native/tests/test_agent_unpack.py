"""Archives through TAR_IN: every dialect, every way of cutting, and what must never be unpacked."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import random
import shutil
import stat
import struct
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from archives import archive_of, member, random_tree, seen
from frames import END_FLAG, Refused, Type, pack_bytes
from peer import Peer, refusal

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root: sudo make test")
FORMATS = {"pax": tarfile.PAX_FORMAT, "gnu": tarfile.GNU_FORMAT, "ustar": tarfile.USTAR_FORMAT}


# ---- in ----


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("seed", range(3))
def test_a_tree_goes_in_as_tarfile_wrote_it(peer: Peer, tmp_path: Path, form: str, seed: int) -> None:
    (tmp_path / "tree").mkdir()
    random_tree(tmp_path / "tree", seed, "full" if form == "pax" else "short")
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=FORMATS[form], errors="surrogateescape") as tar:
        tar.add(tmp_path / "tree", arcname=".")
        count = len(tar.getmembers())
    assert peer.tar_in(tmp_path / "copy", buffer.getvalue()) == count
    expected, got = seen(tmp_path / "tree"), seen(tmp_path / "copy")
    assert got.keys() == expected.keys()
    for name, wanted in expected.items():
        if wanted[0] == "directory":
            assert got[name] == wanted
        else:
            assert got[name][:-1] == wanted[:-1]
            assert abs(int(str(got[name][-1])) - int(str(wanted[-1]))) < 10_000  # tarfile writes times as floats


@pytest.mark.parametrize("piece", [1, 13, 511, 512, 1024, 65536])
def test_pieces_of_any_size_unpack_the_same(peer: Peer, tmp_path: Path, piece: int) -> None:
    members = [
        member("directory", kind=tarfile.DIRTYPE, mode=0o755),
        member("directory/" + "n" * 150, data=os.urandom(1500), pax_headers={"mtime": "1000.25"}),
        member("é", data=b"x" * 512),
        member("empty"),
    ]
    peer.tar_in(tmp_path / "copy", archive_of(*members), piece)
    assert len(seen(tmp_path / "copy")) == 4
    assert (tmp_path / "copy/directory" / ("n" * 150)).stat().st_mtime_ns == 1_000_250_000_000


def test_random_pieces_unpack_the_same(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "tree").mkdir()
    random_tree(tmp_path / "tree", 7)
    archive = peer.tar_out(tmp_path / "tree")
    chance = random.Random(7)
    channel = peer.ask(Type.TAR_IN, struct.pack("<I", 0) + pack_bytes(tmp_path / "copy"))
    at = 0
    while at < len(archive):
        size = chance.randrange(0, 2048)
        peer.send(channel, Type.DATA, archive[at : at + size])
        at += size
    peer.send(channel, Type.DATA, b"", END_FLAG)
    peer.result(channel)
    assert seen(tmp_path / "copy") == seen(tmp_path / "tree")


def test_gnu_long_names_and_links_go_in(peer: Peer, tmp_path: Path) -> None:
    name, target = "d/" + "n" * 240, "t" * 300
    archive = archive_of(
        member(name, data=b"x"), member("l" * 200, kind=tarfile.SYMTYPE, linkname=target), form=tarfile.GNU_FORMAT
    )
    assert b"././@LongLink" in archive
    assert peer.tar_in(tmp_path, archive) == 2
    assert (tmp_path / name).read_bytes() == b"x"
    assert os.readlink(tmp_path / ("l" * 200)) == target


def test_ustar_prefixes_go_in(peer: Peer, tmp_path: Path) -> None:
    name = "p" * 90 + "/" + "n" * 90
    peer.tar_in(tmp_path, archive_of(member(name, data=b"x"), form=tarfile.USTAR_FORMAT))
    assert (tmp_path / name).read_bytes() == b"x"


def test_base_256_sizes_go_in(peer: Peer, tmp_path: Path) -> None:
    archive = bytearray(archive_of(member("file", data=b"hello"), form=tarfile.USTAR_FORMAT))
    archive[124:136] = b"\x80" + (5).to_bytes(11, "big")
    archive[148:156] = b" " * 8
    archive[148:156] = b"%06o\0 " % sum(archive[:512])
    peer.tar_in(tmp_path, bytes(archive))
    assert (tmp_path / "file").read_bytes() == b"hello"


def test_global_headers_and_comments_are_taken(peer: Peer, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    headers = {"comment": "0123", "mtime": "77.5"}
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT, pax_headers=headers) as tar:
        tar.addfile(*[member("file")[0]])
    peer.tar_in(tmp_path, buffer.getvalue())
    assert (tmp_path / "file").stat().st_mtime_ns == 77_500_000_000


def test_hard_links_inside_go_in(peer: Peer, tmp_path: Path) -> None:
    archive = archive_of(
        member("a/file", data=b"x"),
        member("b/link", kind=tarfile.LNKTYPE, linkname="./a/file"),
        member("a/file", kind=tarfile.LNKTYPE, linkname="a/file"),
    )
    assert peer.tar_in(tmp_path, archive) == 3
    assert (tmp_path / "a/file").samefile(tmp_path / "b/link")
    assert (tmp_path / "a/file").stat().st_nlink == 2


def test_what_is_in_the_way_is_replaced_unless_it_is_a_directory(peer: Peer, tmp_path: Path) -> None:
    target, outside = tmp_path / "target", tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"untouched")
    (target / "kept").mkdir(parents=True)
    (target / "kept/old").write_bytes(b"old")
    (target / "file").symlink_to(outside / "file")
    (target / "directory").symlink_to(outside)
    os.mkfifo(target / "fifo")
    archive = archive_of(
        member("kept", kind=tarfile.DIRTYPE, mode=0o700),
        member("file", data=b"new"),
        member("directory", kind=tarfile.DIRTYPE, mode=0o755),
        member("directory/file", data=b"inside"),
        member("fifo", kind=tarfile.SYMTYPE, linkname="file"),
    )
    peer.tar_in(target, archive)
    assert (outside / "file").read_bytes() == b"untouched"
    assert list(outside.iterdir()) == [outside / "file"]
    assert (target / "file").read_bytes() == b"new"
    assert not (target / "file").is_symlink()
    assert (target / "directory/file").read_bytes() == b"inside"
    assert (target / "kept/old").read_bytes() == b"old"
    assert stat.S_IMODE((target / "kept").stat().st_mode) == 0o700
    assert refusal(peer.tar_in, target, archive_of(member("kept", data=b""))).errno == errno.EISDIR


def test_a_target_that_was_there_keeps_its_mode_and_a_new_one_takes_the_archives(peer: Peer, tmp_path: Path) -> None:
    archive = archive_of(member(".", kind=tarfile.DIRTYPE, mode=0o750))
    (tmp_path / "old").mkdir(mode=0o777)
    (tmp_path / "old").chmod(0o1777)
    peer.tar_in(tmp_path / "old", archive)
    peer.tar_in(tmp_path / "a/new", archive)
    assert stat.S_IMODE((tmp_path / "old").stat().st_mode) == 0o1777
    assert stat.S_IMODE((tmp_path / "a/new").stat().st_mode) == 0o750


def test_set_id_bits_are_dropped(peer: Peer, tmp_path: Path) -> None:
    peer.tar_in(
        tmp_path, archive_of(member("file", mode=0o6777, data=b"x"), member("d", kind=tarfile.DIRTYPE, mode=0o2755))
    )
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o777
    assert stat.S_IMODE((tmp_path / "d").stat().st_mode) == 0o755


@needs_root
def test_owners_are_the_default_users(peer: Peer, tmp_path: Path) -> None:
    peer.config(user="1234")
    archive = archive_of(
        member("a/b/file", data=b"x", uid=0, gid=0),
        member("d", kind=tarfile.DIRTYPE, mode=0o755),
        member("link", kind=tarfile.SYMTYPE, linkname="d"),
    )
    peer.tar_in(tmp_path / "target", archive)
    names = ("target", "target/a", "target/a/b", "target/a/b/file", "target/d", "target/link")
    assert {os.lstat(tmp_path / name).st_uid for name in names} == {1234}


HOSTILE = {
    "a parent directory": [member("../evil", data=b"x")],
    "a parent directory within": [member("a/../../evil", data=b"x")],
    "an absolute name": [member("/tmp/evil-dutyfree", data=b"x")],
    "an absolute directory": [member("/tmp/evil-dutyfree", kind=tarfile.DIRTYPE)],
    "a planted link": [member("way", kind=tarfile.SYMTYPE, linkname=".."), member("way/evil", data=b"x")],
    "a planted absolute link": [member("way", kind=tarfile.SYMTYPE, linkname="/tmp"), member("way/evil", data=b"x")],
    "a planted chain": [
        member("a", kind=tarfile.SYMTYPE, linkname="b"),
        member("b", kind=tarfile.SYMTYPE, linkname=".."),
        member("a/evil", kind=tarfile.DIRTYPE),
    ],
    "a deep planted link": [
        member("d/e", kind=tarfile.DIRTYPE, mode=0o755),
        member("d/e/way", kind=tarfile.SYMTYPE, linkname="../../.."),
        member("d/e/way/evil", data=b"x"),
    ],
    "a hard link outside": [member("link", kind=tarfile.LNKTYPE, linkname="../secret")],
    "an absolute hard link": [member("link", kind=tarfile.LNKTYPE, linkname="/etc/passwd")],
    "a hard link through a link": [
        member("way", kind=tarfile.SYMTYPE, linkname=".."),
        member("link", kind=tarfile.LNKTYPE, linkname="way/secret"),
    ],
    "a device": [member("device", kind=tarfile.CHRTYPE, devmajor=1, devminor=5)],
    "a whiteout": [member("whiteout", kind=tarfile.CHRTYPE, devmajor=0, devminor=0)],
    "a block device": [member("device", kind=tarfile.BLKTYPE, devmajor=8, devminor=0)],
    "a fifo": [member("fifo", kind=tarfile.FIFOTYPE)],
    "an opaque mark": [member("d", kind=tarfile.DIRTYPE, pax_headers={"SCHILY.xattr.trusted.overlay.opaque": "y"})],
    "a user's opaque mark": [member("d", kind=tarfile.DIRTYPE, pax_headers={"SCHILY.xattr.user.overlay.opaque": "y"})],
    "another spelling": [
        member("d", kind=tarfile.DIRTYPE, pax_headers={"LIBARCHIVE.xattr.user.overlay.redirect": "y"})
    ],
}


@pytest.mark.parametrize("which", HOSTILE)
def test_nothing_hostile_is_unpacked(peer: Peer, tmp_path: Path, which: str) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    target = tmp_path / "target"
    refused = refusal(peer.tar_in, target, archive_of(*HOSTILE[which]))
    assert refused.errno == errno.EPERM
    assert sorted(path.name for path in tmp_path.iterdir()) == ["secret", "target"]
    assert not os.path.lexists("/tmp/evil-dutyfree")
    assert not os.path.lexists("/tmp/evil")
    assert (tmp_path / "secret").stat().st_nlink == 1
    if "mark" not in which and "spelling" not in which:
        assert refused.what == "entry"
        assert os.fsencode(HOSTILE[which][-1][0].name) in refused.detail


WITHOUT_OPENAT2 = """
import ctypes, os, struct, sys
code = [(0x20, 0, 0, 0), (0x15, 0, 1, 437), (0x06, 0, 0, 0x50000 | int(sys.argv[1])), (0x06, 0, 0, 0x7fff0000)]
rules = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *rule) for rule in code))
program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(code), ctypes.addressof(rules)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, program, 0, 0) == 0, ctypes.get_errno()
os.execv(sys.argv[2], sys.argv[2:])
"""


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.EPERM])
def test_nothing_hostile_is_unpacked_where_openat2_is_missing(
    program: Path, start: Callable[..., Peer], tmp_path: Path, number: int
) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    peer = start(program, through=(sys.executable, "-c", WITHOUT_OPENAT2, str(number)))
    for i, members in enumerate(HOSTILE.values()):
        assert refusal(peer.tar_in, tmp_path / f"target-{i}", archive_of(*members)).errno == errno.EPERM
    random_tree(tmp_path / "target-0", 5)
    peer.tar_in(tmp_path / "target-copy", peer.tar_out(tmp_path / "target-0"))
    assert seen(tmp_path / "target-copy") == seen(tmp_path / "target-0")
    assert {path.name.split("-")[0] for path in tmp_path.iterdir()} == {"secret", "target"}
    assert (tmp_path / "secret").stat().st_nlink == 1


@needs_root
def test_an_ordinary_user_can_unpack_read_only_directories(
    program: Path, start: Callable[..., Peer], quick_path: Path
) -> None:
    quick_path.chmod(0o755)
    program = shutil.copy(program, quick_path / "agent")
    (quick_path / "home").mkdir()
    os.chown(quick_path / "home", 1234, 1234)
    archive = archive_of(
        member(".", kind=tarfile.DIRTYPE, mode=0o555),
        member("d", kind=tarfile.DIRTYPE, mode=0o555),
        member("d/e", kind=tarfile.DIRTYPE, mode=0o500),
        member("d/e/file", data=b"x", mode=0o444),
    )
    peer = start(program, through=("setpriv", "--reuid=1234", "--regid=1234", "--clear-groups"))
    assert peer.tar_in(quick_path / "home/target", archive) == 4
    modes = [stat.S_IMODE((quick_path / "home/target" / name).stat().st_mode) for name in (".", "d", "d/e", "d/e/file")]
    assert modes == [0o555, 0o555, 0o500, 0o444]


def test_a_name_with_a_nul_is_refused(peer: Peer, tmp_path: Path) -> None:
    archive = archive_of(member("file", pax_headers={"path": "a\0b"}))
    assert refusal(peer.tar_in, tmp_path, archive).errno == errno.EINVAL


def test_a_file_as_a_parent_is_an_error(peer: Peer, tmp_path: Path) -> None:
    archive = archive_of(member("file", data=b"x"), member("file/below", data=b"y"))
    assert refusal(peer.tar_in, tmp_path, archive).errno == errno.ENOTDIR


def test_one_file_named_dot_is_refused(peer: Peer, tmp_path: Path) -> None:
    assert refusal(peer.tar_in, tmp_path / "t", archive_of(member(".", data=b"x"))).errno == errno.EISDIR


def test_a_bad_checksum_names_its_place(peer: Peer, tmp_path: Path) -> None:
    archive = bytearray(archive_of(member("a", data=b"x" * 512), member("b"), form=tarfile.USTAR_FORMAT))
    archive[1024] ^= 1
    refused = refusal(peer.tar_in, tmp_path, bytes(archive))
    assert (refused.errno, refused.what) == (errno.EINVAL, "tar")
    assert b"byte 1536" in refused.detail
    assert b"checksum" in refused.detail


@pytest.mark.parametrize("size", [0, 1, 511, 512, 600, 1023, 1024])
def test_a_stream_cut_anywhere_is_an_error(peer: Peer, tmp_path: Path, size: int) -> None:
    archive = archive_of(member("file", data=b"x" * 512), form=tarfile.USTAR_FORMAT)
    refused = refusal(peer.tar_in, tmp_path, archive[:size])
    assert refused.errno == errno.EINVAL
    assert f"byte {size} ".encode() in refused.detail


@pytest.mark.parametrize(
    "records",
    [b"x", b"5 a=b", b"99999 path=x\n", b"0 =\n", b"7 path\n\n", b"99999999999999999999 path=x\n", b"9 size=x\n"],
)
def test_malformed_pax_records_are_errors(peer: Peer, tmp_path: Path, records: bytes) -> None:
    archive = archive_of(
        member("header", kind=tarfile.XHDTYPE, data=records), member("file"), form=tarfile.USTAR_FORMAT
    )
    assert refusal(peer.tar_in, tmp_path, archive).errno == errno.EINVAL


def test_a_huge_extended_header_is_refused(peer: Peer, tmp_path: Path) -> None:
    info, _ = member("header", kind=tarfile.XHDTYPE)
    info.size = 1 << 32
    refused = refusal(peer.tar_in, tmp_path, info.tobuf(tarfile.USTAR_FORMAT))
    assert refused.errno == errno.EINVAL


def test_sparse_and_unknown_types_are_not_guessed(peer: Peer, tmp_path: Path) -> None:
    for kind in (tarfile.GNUTYPE_SPARSE, b"M", b"Z"):
        info, _ = member("file", kind=kind)
        assert refusal(peer.tar_in, tmp_path, info.tobuf(tarfile.GNU_FORMAT)).errno == errno.ENOTSUP
    sparse = archive_of(member("file", pax_headers={"GNU.sparse.major": "1"}))
    assert refusal(peer.tar_in, tmp_path, sparse).errno == errno.ENOTSUP


def test_an_upload_can_be_cancelled(peer: Peer, tmp_path: Path) -> None:
    archive = archive_of(member("file", data=b"x" * 5000))
    channel = peer.ask(Type.TAR_IN, struct.pack("<I", 0) + pack_bytes(tmp_path))
    peer.send(channel, Type.DATA, archive[:3000])
    peer.send(channel, Type.CANCEL)
    assert refusal(peer.result, channel).errno == errno.ECANCELED


def test_a_target_that_is_a_file_is_an_error(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    refused = refusal(peer.tar_in, tmp_path / "file", archive_of())
    assert (refused.errno, refused.what) == (errno.ENOTDIR, "path")


@pytest.mark.parametrize("seed", range(20))
def test_garbage_never_harms_the_agent(peer: Peer, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    archive = bytearray(
        archive_of(
            member("d", kind=tarfile.DIRTYPE, mode=0o755),
            member("d/" + "n" * 200, data=b"x" * 700),
            member("é", kind=tarfile.SYMTYPE, linkname="t" * 150),
            member("h", kind=tarfile.LNKTYPE, linkname="d/" + "n" * 200),
        )
    )
    for _ in range(30):
        mutated = bytearray(archive)
        for _ in range(chance.randrange(1, 4)):
            block = chance.randrange(len(archive) // 512) * 512
            mutated[block + chance.randrange(512)] = chance.randrange(256)
            if chance.random() < 0.7:  # a valid checksum leads further in
                mutated[block + 148 : block + 156] = b" " * 8
                mutated[block + 148 : block + 156] = b"%06o\0 " % sum(mutated[block : block + 512])
        channel = peer.ask(Type.TAR_IN, struct.pack("<I", 0) + pack_bytes(tmp_path / "inside/target"))
        peer.upload(channel, bytes(mutated), chance.randrange(1, 3000))
        with contextlib.suppress(Refused):
            peer.result(channel)
    peer.ping()
    assert [path.name for path in tmp_path.iterdir()] == ["inside"]
    assert [path.name for path in (tmp_path / "inside").iterdir()] == ["target"]
