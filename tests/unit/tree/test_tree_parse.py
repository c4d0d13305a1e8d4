"""A hostile tar stream writes nothing outside its directory, and little inside."""

import io
import os
import tarfile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dutyfree.core.errors import Misuse, Violation
from dutyfree.tree.pack import tree_pieces
from dutyfree.tree.parse import Untar
from dutyfree.tree.unpack import Unpack, stays_inside


def member(name, kind=tarfile.REGTYPE, content=b"", **more):
    info = tarfile.TarInfo()
    info.name, info.type, info.size = name, kind, len(content)
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape") + content + bytes(-len(content) % 512)


def raw_header(name, kind, size=0, link=b""):
    block = bytearray(512)
    block[: len(name)] = name
    block[100:108] = b"0000644\0"
    block[124:136] = b"%011o\0" % size
    block[156:157] = kind
    block[157 : 157 + len(link)] = link
    block[257:265] = b"ustar\x0000"
    block[148:156] = b" " * 8
    block[148:156] = b"%06o\0 " % sum(block)
    return bytes(block)


END = bytes(1024)


def unpacked(tmp_path, stream, limit=1 << 20, entries=100, piece=None):
    unpack = Unpack(tmp_path / "out", limit, entries)
    try:
        unpack.open()
        untar = Untar(unpack)
        for at in range(0, len(stream), piece or 1 << 20):
            untar.feed(stream[at : at + (piece or 1 << 20)])
        untar.close()
        unpack.commit()
    finally:
        unpack.discard()
    return tmp_path / "out"


REFUSED = {
    "an absolute name": member("/etc/x"),
    "a name with ..": member("a/../../x"),
    "a name that is ..": member(".."),
    "a name too long": member("a/" * 2100 + "x"),
    "a component too long": member("x" * 256),
    "a hard link": member("l", tarfile.LNKTYPE, linkname="/etc/passwd"),
    "a device": member("d", tarfile.CHRTYPE),
    "a fifo": member("f", tarfile.FIFOTYPE),
    "a GNU long name": raw_header(b"././@LongLink", b"L", 10) + bytes(512),
    "a sparse file": raw_header(b"s", b"S"),
    "a global pax header": raw_header(b"g", b"g", 10) + bytes(512),
    "a file twice": member("f") + member("f"),
    "a directory twice": member("d", tarfile.DIRTYPE) + member("d", tarfile.DIRTYPE),
    "a file in place of a link": member("l", tarfile.SYMTYPE, linkname="x") + member("l"),
    "a file through a link": member("d", tarfile.DIRTYPE)
    + member("l", tarfile.SYMTYPE, linkname="d")
    + member("l/f", content=b"x"),
    "a file below a file": member("f") + member("f/g"),
    "a file before its directory": member("d/f"),
    "a link as the root": member(".", tarfile.SYMTYPE, linkname="x"),
    "more after a single file": member(".", content=b"x") + member("f"),
    "a directory with content": raw_header(b"d", b"5", 512) + bytes(512),
    "a wrong checksum": raw_header(b"x", b"0")[:-1] + b"\1",
    "a number that is not octal": raw_header(b"x", b"0").replace(b"0000644", b"00006x4"),
    "a base-256 size": raw_header(b"x", b"0")[:124] + b"\x80" + bytes(11) + raw_header(b"x", b"0")[136:],
    "a pax header too large": raw_header(b"p", b"x", 1 << 20),
    "a pax header that is empty": raw_header(b"p", b"x", 0),
    "a pax record without end": raw_header(b"p", b"x", 8) + b"99 a=b\n\0".ljust(512, b"\0"),
    "a pax record without value": raw_header(b"p", b"x", 5) + b"5 ab\n".ljust(512, b"\0"),
    "a pax path with ..": raw_header(b"p", b"x", 13) + b"13 path=../x\n".ljust(512, b"\0") + raw_header(b"f", b"0"),
    "a pax size that is no number": raw_header(b"p", b"x", 11)
    + b"11 size=-1\n".ljust(512, b"\0")
    + raw_header(b"f", b"0"),
    "a stream cut short": member("f", content=b"x" * 1000)[:700],
    "no end": b"",
    "noise": b"\x55" * 512,
}


@pytest.mark.parametrize("name", REFUSED)
def test_a_stream_the_agent_never_makes_is_refused_and_leaves_nothing(tmp_path, name):
    end = b"" if name in ("a stream cut short", "no end") else END
    with pytest.raises(Violation):
        unpacked(tmp_path, REFUSED[name] + end)
    assert os.listdir(tmp_path) == []


def test_limits_hold_for_bytes_and_entries(tmp_path):
    with pytest.raises(Misuse, match="more than 10 bytes"):
        unpacked(tmp_path, member("f", content=bytes(11)) + END, limit=10)
    with pytest.raises(Misuse, match="entries"):
        unpacked(tmp_path, b"".join(member(str(i)) for i in range(4)) + END, entries=3)
    assert os.listdir(tmp_path) == []


def test_set_id_bits_are_dropped_and_directories_stay_usable(tmp_path):
    stream = member("d", tarfile.DIRTYPE, mode=0o2500) + member("d/f", mode=0o6755, mtime=1234567890) + END
    out = unpacked(tmp_path, stream)
    assert (out / "d").stat().st_mode & 0o7777 == 0o700
    assert (out / "d" / "f").stat().st_mode & 0o7777 == 0o755
    assert (out / "d" / "f").stat().st_mtime == 1234567890


def test_something_that_appears_meanwhile_is_not_replaced(tmp_path):
    for stream in (member(".", content=b"x") + END, member("f") + END):
        unpack = Unpack(tmp_path / "out", 100)
        unpack.open()
        untar = Untar(unpack)
        untar.feed(stream)
        untar.close()
        (tmp_path / "out").mkdir()
        (tmp_path / "out" / "mine").write_bytes(b"mine")
        with pytest.raises(OSError):
            unpack.commit()
        unpack.discard()
        assert (tmp_path / "out" / "mine").read_bytes() == b"mine"
        (tmp_path / "out" / "mine").unlink()
        (tmp_path / "out").rmdir()


@pytest.mark.parametrize("piece", [1, 7, 511, 512, 513, 4096])
def test_any_chunking_gives_the_same_files(tmp_path, piece):
    stream = member("d", tarfile.DIRTYPE) + member("d/" + "ü" * 100, content=b"c" * 1025) + member("e") + END
    out = unpacked(tmp_path, stream, piece=piece)
    assert (out / "d" / ("ü" * 100)).read_bytes() == b"c" * 1025
    assert (out / "e").read_bytes() == b""


@pytest.mark.parametrize(
    ("target", "depth", "inside"),
    [
        (b"a", 0, True),
        (b"a/b/../c", 0, False),
        (b"..", 0, False),
        (b"..", 1, True),
        (b"../..", 1, False),
        (b"../a", 1, True),
        (b"./../a", 1, True),
        (b"a/..", 3, False),
        (b"/a", 3, False),
        (b"", 3, False),
        (b".", 0, True),
        (b"a" * 5000, 0, False),
    ],
)
def test_links_stay_inside_or_are_not_made(target, depth, inside):
    assert stays_inside(target, depth) is inside


@given(
    st.lists(
        st.tuples(st.lists(st.sampled_from(["a", "b", "c", ".."]), min_size=1, max_size=4), st.booleans()), max_size=8
    )
)
def test_no_set_of_links_leads_out(tmp_path_factory, wanted):
    tmp_path = tmp_path_factory.mktemp("links")
    stream = member("a", tarfile.DIRTYPE) + member("a/b", tarfile.DIRTYPE) + member("a/b/c", tarfile.DIRTYPE)
    for i, (parts, deep) in enumerate(wanted):
        name = f"a/b/l{i}" if deep else f"l{i}"
        stream += member(name, tarfile.SYMTYPE, linkname="/".join(parts).replace("c", f"l{max(0, i - 1)}"))
    out = unpacked(tmp_path, stream + END)
    for base, directories, files in os.walk(out):
        for name in directories + files:
            assert os.path.realpath(os.path.join(base, name)).startswith(str(out))


@given(st.binary(max_size=3000))
def test_arbitrary_bytes_raise_a_violation_or_nothing(data):
    class Nowhere:
        def begin(self, entry):
            pass

        def content(self, data):
            pass

        def end(self):
            pass

    untar = Untar(Nowhere())
    try:
        untar.feed(data)
        untar.close()
    except Violation:
        pass


def test_python_itself_reads_what_is_packed(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / ("n" * 200)).write_bytes(b"content")
    (tmp_path / "l").symlink_to("d")
    os.mkfifo(tmp_path / "fifo")
    with tarfile.open(fileobj=io.BytesIO(b"".join(tree_pieces(tmp_path)))) as tar:
        assert [(m.name, m.type) for m in tar] == [
            ("d", tarfile.DIRTYPE), ("d/" + "n" * 200, tarfile.REGTYPE), ("l", tarfile.SYMTYPE),
        ]  # fmt: skip
        assert {m.uid for m in tar} == {0}


def test_headers_of_entries_that_fit_are_those_of_python_itself(tmp_path):
    (tmp_path / "d").mkdir(mode=0o711)
    (tmp_path / ("n" * 100)).write_bytes(b"x" * 513)
    (tmp_path / "s").symlink_to("t" * 100)
    expected = b""
    for name, kind, size, target in [
        ("d", tarfile.DIRTYPE, 0, ""), ("n" * 100, tarfile.REGTYPE, 513, ""), ("s", tarfile.SYMTYPE, 0, "t" * 100),
    ]:  # fmt: skip
        status = (tmp_path / name).lstat()
        info = tarfile.TarInfo(name)
        info.type, info.size, info.linkname = kind, size, target
        info.mode, info.mtime = status.st_mode & 0o7777, int(status.st_mtime)
        expected += info.tobuf(tarfile.PAX_FORMAT) + (b"x" * 513).ljust(1024, b"\0") * bool(size)
    assert b"".join(tree_pieces(tmp_path)) == expected + bytes(1024)
