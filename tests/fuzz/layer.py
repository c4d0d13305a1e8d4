"""Hostile layers and images: they unpack inside their directory or are refused by an error of ours, and nothing stays open."""

import gzip
import io
import json
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path

import atheris

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.image import Layout, layer, member

with atheris.instrument_imports(include=["dutyfree"]):
    from dutyfree.core.errors import DriverError, DutyfreeError
    from dutyfree.image.archive import unpack
    from dutyfree.image.oci.intake import import_path
    from dutyfree.image.oci.layer import unpack_layer
    from dutyfree.image.oci.reference import parse_reference
    from dutyfree.image.store import Store
    from dutyfree.image.stream import decompressed
    from dutyfree.image.view import View

PLACE = Path(tempfile.mkdtemp(dir=os.environ.get("FUZZ_KEEP", "/dev/shm")))
NAMES = (
    "a",
    "b",
    "a/b",
    "a/b/c",
    "s",
    "s/a",
    "../x",
    "/a",
    ".wh.a",
    "a/.wh.b",
    "a/.wh..wh..opq",
    ".",
    "s/../a",
    "",
    "a" * 300,
    "\udce4",
)
TARGETS = ("a", "..", "/", "../../..", "/etc", "s", "b", ".", "", "a/b", "/dev/shm")
KINDS = (tarfile.REGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.CHRTYPE, tarfile.FIFOTYPE, b"9")
PAX = (
    "SCHILY.xattr.user.x",
    "SCHILY.xattr.trusted.overlay.opaque",
    "SCHILY.xattr.security.capability",
    "mtime",
    "size",
    "path",
    "GNU.sparse.map",
)
CAP_BYTES = 1 << 20


def made(data):
    """A layer by its members, some bytes of it wrong."""
    members = []
    for _ in range(data.ConsumeIntInRange(0, 8)):
        kind = KINDS[data.ConsumeIntInRange(0, 6)]
        content = data.ConsumeBytes(data.ConsumeIntInRange(0, 64)) if kind == tarfile.REGTYPE else None
        fields = {
            "type": kind, "linkname": TARGETS[data.ConsumeIntInRange(0, 10)], "mode": data.ConsumeIntInRange(0, 0o7777),
            "uid": data.ConsumeIntInRange(0, 1 << 21), "mtime": data.ConsumeIntInRange(0, 1 << 33),
        }  # fmt: skip
        if data.ConsumeBool():
            fields["pax_headers"] = {PAX[data.ConsumeIntInRange(0, 6)]: data.ConsumeUnicodeNoSurrogates(12)}
        members.append(member(NAMES[data.ConsumeIntInRange(0, 15)] or "x", content, **fields))
    try:
        raw = bytearray(layer(*members))
    except (ValueError, UnicodeError):
        return b""
    for _ in range(data.ConsumeIntInRange(0, 3)):
        raw[data.ConsumeIntInRange(0, len(raw) - 1)] = data.ConsumeIntInRange(0, 255)
    return bytes(raw)


def stack(data, folder):
    layers = []
    for number in range(data.ConsumeIntInRange(1, 3)):
        target = folder / f"layer{number}"
        target.mkdir()
        raw = made(data) if data.ConsumeBool() else data.ConsumeBytes(2048)
        unpack_layer(io.BytesIO(raw), target, View(layers), max_bytes=CAP_BYTES)
        layers.insert(0, target)
    list(View(layers).walk())


def rootfs(data, folder):
    (folder / "layer").mkdir()
    raw = made(data)
    packed = gzip.compress(raw) if data.ConsumeBool() else data.ConsumeBytes(8) + raw
    unpack(decompressed(io.BytesIO(packed)), folder / "layer", max_bytes=CAP_BYTES)


def image(data, folder):
    """A layout whose documents are nearly right."""
    layout = Layout(folder / "layout")
    layout.add(layout.manifest([layer(member("a", b"1"))]))
    paths = sorted(path for path in (folder / "layout").rglob("*") if path.is_file())
    for _ in range(data.ConsumeIntInRange(1, 3)):
        path = paths[data.ConsumeIntInRange(0, len(paths) - 1)]
        path.write_bytes(changed(path.read_bytes(), data))
    store = Store(folder / "store")
    try:
        import_path(store, folder / "layout", max_bytes=CAP_BYTES)
    finally:
        store.close()


def changed(raw, data):
    try:
        document = json.loads(raw)
    except ValueError:
        document = None
    if isinstance(document, dict) and document and data.ConsumeBool():
        key = sorted(document)[data.ConsumeIntInRange(0, len(document) - 1)]
        document[key] = VALUES[data.ConsumeIntInRange(0, len(VALUES) - 1)]
        return json.dumps(document).encode()
    at = data.ConsumeIntInRange(0, max(0, len(raw) - 1))
    return raw[:at] + data.ConsumeBytes(4) + raw[at + data.ConsumeIntInRange(0, 4) :]


VALUES = (
    None,
    [],
    {},
    "",
    "x",
    -1,
    1 << 70,
    True,
    [None],
    [{}],
    [[]],
    {"digest": 1},
    [{"digest": "sha256:"}],
    [{"mediaType": 1, "digest": "sha256:" + "0" * 64, "size": -1}],
)


def reference(data, _folder):
    parse_reference(data.ConsumeUnicode(100))


MODES = (stack, stack, rootfs, image, reference)


def one_input(raw):
    data = atheris.FuzzedDataProvider(raw)
    folder = PLACE / "run"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    (PLACE / "outside").mkdir(exist_ok=True)
    before = len(os.listdir("/proc/self/fd"))
    try:
        MODES[data.ConsumeIntInRange(0, len(MODES) - 1)](data, folder)
    except DriverError as error:
        if "Read-only" in str(error):
            raise  # it tried to write outside
    except DutyfreeError:
        pass
    assert os.listdir(PLACE / "outside") == []
    assert sorted(os.listdir(PLACE)) == ["outside", "run"]
    assert len(os.listdir("/proc/self/fd")) == before, "descriptors are left open"


if __name__ == "__main__":
    atheris.Setup(sys.argv, one_input)
    try:
        atheris.Fuzz()
    finally:
        shutil.rmtree(PLACE, ignore_errors=True)
