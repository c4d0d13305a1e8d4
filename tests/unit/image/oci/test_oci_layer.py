"""One layer after another becomes what overlayfs shows, and nothing leaves the directory."""

import io
import os
import stat
import tarfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.image import hard, layer, link, member

from dutyfree.core.errors import Misuse
from dutyfree.image.oci.layer import unpack_layer
from dutyfree.image.view import View, is_opaque, is_whiteout

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="owners and attributes are root's to give: sudo make test")


def stack(tmp_path: Path, *layers: bytes) -> View:
    """Unpack layers, lowest first; what they show together."""
    paths: list[Path] = []
    for index, content in enumerate(layers):
        target = tmp_path / f"layer{index}"
        target.mkdir()
        unpack_layer(io.BytesIO(content), target, View(paths))
        paths.insert(0, target)
    return View(paths)


def shown(view: View) -> dict[str, str]:
    return {
        place: os.readlink(entry.path)
        if stat.S_ISLNK(entry.status.st_mode)
        else "/"
        if entry.is_folder
        else entry.path.read_text()
        for place, entry in view.walk()
    }


def test_a_whiteout_hides_what_is_below(tmp_path: Path):
    view = stack(
        tmp_path,
        layer(member("a", b"1"), member("d/"), member("d/b", b"2")),
        layer(member(".wh.a", b""), member("d/.wh.b", b"")),
    )
    assert shown(view) == {"d": "/"}
    assert is_whiteout((tmp_path / "layer1/a").lstat())


def test_a_whiteout_of_nothing_leaves_nothing(tmp_path: Path):
    stack(tmp_path, layer(member("a", b"1")), layer(member(".wh.b", b""), member("x/.wh.c", b"")))
    assert os.listdir(tmp_path / "layer1") == ["x"]
    assert os.listdir(tmp_path / "layer1/x") == []


@pytest.mark.parametrize("first", [True, False])
def test_an_opaque_directory_shows_only_what_its_own_layer_has(tmp_path: Path, first: bool):
    mark, own = member("d/.wh..wh..opq", b""), member("d/new", b"2")
    view = stack(
        tmp_path,
        layer(member("d/"), member("d/old", b"1")),
        layer(member("d/"), *((mark, own) if first else (own, mark))),
    )
    assert shown(view) == {"d": "/", "d/new": "2"}
    assert is_opaque(tmp_path / "layer1/d")
    assert os.getxattr(tmp_path / "layer1/d", "trusted.overlay.opaque") == b"y"
    assert os.getxattr(tmp_path / "layer1/d", "user.overlay.opaque") == b"y"


@pytest.mark.parametrize("first", [True, False])
def test_a_whiteout_beside_its_own_layers_entry_concerns_what_is_below_only(tmp_path: Path, first: bool):
    base = layer(member("d/"), member("d/old", b"1"), member("f", b"1"))
    marks = (member(".wh.d", b""), member(".wh.f", b""))
    own = (member("d/"), member("d/new", b"2"), member("f", b"2"))
    view = stack(tmp_path, base, layer(*marks, *own) if first else layer(*own, *marks))
    assert shown(view) == {"d": "/", "d/new": "2", "f": "2"}


def test_a_file_may_become_a_directory_and_back(tmp_path: Path):
    view = stack(
        tmp_path,
        layer(member("a", b"1"), member("b/"), member("b/x", b"1")),
        layer(member("a/"), member("a/x", b"2"), member("b", b"2")),
        layer(member("a", b"3"), member("b/"), member("b/y", b"3")),
    )
    assert shown(view) == {"a": "3", "b": "/", "b/y": "3"}


def test_a_parent_that_is_not_listed_keeps_its_owner_mode_and_attributes(tmp_path: Path):
    folder = member("d/", mode=0o2750, uid=7, gid=8, mtime=5, pax_headers={"SCHILY.xattr.user.x": "y"})
    view = stack(tmp_path, layer(folder), layer(member("d/a", b"1"), member("e/f/g", b"2")))
    entry = view.entry(("d",))
    assert entry.path == tmp_path / "layer1/d"
    assert (stat.S_IMODE(entry.status.st_mode), entry.status.st_uid, entry.status.st_gid) == (0o2750, 7, 8)
    assert entry.status.st_mtime == 5
    assert os.getxattr(entry.path, "user.x") == b"y"
    assert stat.S_IMODE(view.entry(("e", "f")).status.st_mode) == 0o755


def test_a_parent_that_is_a_symlink_below_is_followed_inside_the_image(tmp_path: Path):
    view = stack(
        tmp_path,
        layer(
            member("usr/"), member("usr/lib/"), link("lib", "usr/lib"), link("far", "../../../usr"), link("abs", "/usr")
        ),
        layer(member("lib/a", b"1"), member("far/b", b"2"), member("abs/c", b"3")),
    )
    found = shown(view)
    assert (found["usr/lib/a"], found["usr/b"], found["usr/c"]) == ("1", "2", "3")
    assert found["lib"] == "usr/lib"


def test_a_directory_takes_the_place_of_a_symlink_below(tmp_path: Path):
    view = stack(tmp_path, layer(member("usr/"), link("lib", "usr")), layer(member("lib/"), member("lib/a", b"1")))
    assert shown(view) == {"usr": "/", "lib": "/", "lib/a": "1"}


def test_a_hard_link_may_name_a_file_of_its_own_layer_or_below(tmp_path: Path):
    view = stack(
        tmp_path,
        layer(member("a", b"1", mode=0o4755, uid=3)),
        layer(hard("b", "a"), member("c", b"2"), hard("d", "/c")),
    )
    assert shown(view) == {"a": "1", "b": "1", "c": "2", "d": "2"}
    a, b = view.entry(("a",)), view.entry(("b",))
    assert os.path.samestat(a.status, b.status)
    assert (stat.S_IMODE(b.status.st_mode), b.status.st_uid) == (0o4755, 3)


def test_setuid_fifos_times_and_attributes_are_kept(tmp_path: Path):
    stack(
        tmp_path,
        layer(
            member("su", b"x", mode=0o6755, mtime=1, pax_headers={"mtime": "1700000000.123456789"}),
            member("pipe", type=tarfile.FIFOTYPE, mode=0o620),
            member("cap", b"x", pax_headers={"SCHILY.xattr.security.capability": "\x01\0\0\x02\0\x04" + "\0" * 14}),
            member("user", b"x", pax_headers={"SCHILY.xattr.user.k": "v\udcff"}),
        ),
    )
    root = tmp_path / "layer0"
    assert stat.S_IMODE((root / "su").stat().st_mode) == 0o6755
    assert (root / "su").stat().st_mtime_ns == 1700000000123456789
    assert stat.S_ISFIFO((root / "pipe").stat().st_mode)
    assert len(os.getxattr(root / "cap", "security.capability")) == 20
    assert os.getxattr(root / "user", "user.k") == b"v\xff"


@pytest.mark.parametrize("name", ["trusted.overlay.opaque", "user.overlay.redirect", "security.selinux", "system.x"])
def test_attributes_that_mean_something_to_the_machine_are_dropped_with_a_note(tmp_path: Path, name: str):
    result = unpack_layer(
        io.BytesIO(layer(member("d/", pax_headers={f"SCHILY.xattr.{name}": "y"}))), tmp_path, View(())
    )
    assert result.notes == ("1 extended attributes of other kinds dropped",)
    assert os.listxattr(tmp_path / "d") == []


@pytest.mark.parametrize("kind", [tarfile.CHRTYPE, tarfile.BLKTYPE])
@pytest.mark.parametrize("number", [(0, 0), (1, 3)])
def test_devices_are_left_out_with_a_note(tmp_path: Path, kind: bytes, number: tuple[int, int]):
    node = member("node", type=kind, devmajor=number[0], devminor=number[1])
    result = unpack_layer(io.BytesIO(layer(node)), tmp_path, View(()))
    assert result.notes == ("1 devices or unknown members left out",)
    assert os.listdir(tmp_path) == []


def test_old_marks_of_aufs_are_nothing(tmp_path: Path):
    stack(tmp_path, layer(member(".wh..wh.aufs", b""), member("a", b"1")))
    assert os.listdir(tmp_path / "layer0") == ["a"]


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([member("../a", b"1")], "climbs out"),
        ([member("a/../../b", b"1")], "climbs out"),
        ([hard("a", "../../etc/passwd")], "climbs out"),
        ([hard("a", "/etc/passwd")], "links to nothing"),
        ([link("s", "/etc"), hard("a", "s/passwd")], "links to nothing"),
        ([member("f", b"1"), member("f/x", b"2")], "no directory"),
        ([link("a", "b"), link("b", "a"), member("a/x", b"1")], "no directory"),
        ([member(".wh.", b"")], "hides nothing"),
        ([member(".wh...", b"")], "hides nothing"),
        ([member(".wh.a/b", b"")], "below a whiteout"),
        ([member("d/"), member("d", b"1")], "replace a directory"),
        ([member("/".join("x" * 300), b"1")], "directories deep"),
        ([hard("d", "/")], "hard link to the root"),
    ],
)
def test_a_hostile_layer_is_refused(tmp_path: Path, members, why: str):
    with pytest.raises(Misuse, match=why):
        stack(tmp_path, layer(*members))


@pytest.mark.parametrize("target", ["/outside", "../outside", "../../../../../../../../outside", "/", ".."])
def test_nothing_is_written_through_a_symlink_to_the_machine(tmp_path: Path, target: str):
    (tmp_path / "outside").mkdir()
    stack(tmp_path, layer(link("s", target), member("s/x", b"1")), layer(member("s/y", b"2"), member("s/.wh.x", b"")))
    assert os.listdir(tmp_path / "outside") == []
    assert sorted(os.listdir(tmp_path)) == ["layer0", "layer1", "outside"]
    assert not Path("/outside").exists()


def test_a_symlink_that_replaces_another_on_the_way_is_seen(tmp_path: Path):
    view = stack(
        tmp_path,
        layer(
            member("one/"), member("two/"), link("s", "one"), member("s/a", b"1"), link("s", "two"), member("s/b", b"2")
        ),
    )
    assert shown(view) == {"one": "/", "one/a": "1", "two": "/", "two/b": "2", "s": "two"}


def test_more_than_the_cap_is_refused(tmp_path: Path):
    with pytest.raises(Misuse, match="cap"):
        unpack_layer(io.BytesIO(layer(member("a", b"12345"))), tmp_path, View(()), max_bytes=4)


NAMES = st.sampled_from(
    ["a", "b", "a/b", "a/b/c", "s", "s/a", "../x", "/a", ".wh.a", "a/.wh.b", "a/.wh..wh..opq", ".", "a/", "s/../a"]
)
MEMBERS = st.one_of(
    st.builds(member, NAMES, st.binary(max_size=4)),
    st.builds(lambda name: member(name + "/"), NAMES),
    st.builds(link, NAMES, st.sampled_from(["a", "..", "/", "../../..", "/etc", "s", "b", "."])),
    st.builds(hard, NAMES, NAMES),
    st.builds(lambda name: member(name, type=tarfile.CHRTYPE), NAMES),
)


@settings(
    max_examples=150, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.lists(MEMBERS, max_size=8), min_size=1, max_size=3), st.integers(0, 3000))
def test_whatever_the_layers_say_they_unpack_inside_or_are_refused(tmp_path_factory, layers, cut: int):
    root = tmp_path_factory.mktemp("fuzz")
    (root / "outside").mkdir()
    contents = [layer(*members) for members in layers]
    if cut < len(contents[-1]):
        contents[-1] = contents[-1][:cut] + bytes([contents[-1][cut] ^ 0xFF]) + contents[-1][cut + 1 :]
    try:
        view = stack(root, *contents)
    except Misuse:
        view = None
    assert os.listdir(root / "outside") == []
    assert {name for name in os.listdir(root) if not name.startswith("layer")} == {"outside"}
    if view is not None:
        list(view.walk())
