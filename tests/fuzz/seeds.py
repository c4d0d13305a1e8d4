"""What the fuzzers of the C programs start from: honest conversations and archives, one file each."""

import io
import struct
import sys
import tarfile
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "native" / "tests"))
from frames import Type, pack_bytes, pack_exec, pack_frame, pack_list, pack_run

PLENTY = 1 << 60
CREDIT = struct.pack("<Q", PLENTY)


def archive():
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w", format=tarfile.PAX_FORMAT) as made:
        for name, kind, target in (
            ("d", tarfile.DIRTYPE, ""),
            ("d/link", tarfile.SYMTYPE, "../x"),
            ("d/hard", tarfile.LNKTYPE, "d/f"),
            ("d/" + "n" * 120, tarfile.REGTYPE, ""),
            ("d/f", tarfile.REGTYPE, ""),
        ):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.mtime = kind, target, 1.5
            info.size = 700 if kind == tarfile.REGTYPE else 0
            made.addfile(info, io.BytesIO(b"x" * info.size))
    return file.getvalue()


def conversations():
    path = pack_bytes(b"/d/f")
    write = pack_frame(1, Type.WRITE, struct.pack("<II", 0, 0o644) + path + pack_bytes(b"content"), 1)
    tar_in = pack_frame(2, Type.TAR_IN, struct.pack("<I", 0) + pack_bytes(b"/d")) + pack_frame(
        2, Type.DATA, archive(), 1
    )
    yield write + pack_frame(3, Type.READ, struct.pack("<QQQ", 0, 100, 100) + path)
    yield tar_in + pack_frame(4, Type.TAR_OUT, CREDIT + pack_bytes(b"/d"))
    yield (
        tar_in
        + pack_frame(5, Type.LIST, CREDIT + pack_bytes(b"/d"))
        + pack_frame(6, Type.STAT, struct.pack("<I", 1) + path)
    )
    yield (
        write
        + pack_frame(7, Type.RENAME, path + pack_bytes(b"/g"))
        + pack_frame(8, Type.REMOVE, struct.pack("<I", 1) + pack_bytes(b"/g"))
    )
    yield pack_frame(9, Type.MKDIR, struct.pack("<I", 0o755) + pack_bytes(b"/e")) + pack_frame(10, Type.PING, b"there")
    yield pack_frame(
        0, Type.CONFIG, struct.pack("<Q", 0) + pack_bytes(b"/") + pack_bytes(b"root") + pack_list([b"A=1"])
    ) + pack_frame(11, Type.EXEC, pack_exec([b"true"]))
    yield pack_frame(12, Type.SHELL, pack_bytes(b"") + pack_bytes(b"") + pack_list([])) + pack_frame(
        13, Type.SHELL_RUN, pack_run(12, b"true")
    )
    yield pack_frame(14, Type.LISTEN, struct.pack("<H", 0)) + pack_frame(
        15, Type.CONNECT, struct.pack("<QH", 100, 1) + pack_bytes(b"")
    )
    yield (
        pack_frame(16, Type.WRITE, struct.pack("<II", 1, 0o644) + path + pack_bytes(b""))
        + pack_frame(16, Type.DATA, b"x" * 100)
        + pack_frame(16, Type.WINDOW, CREDIT)
        + pack_frame(16, Type.CANCEL)
    )


def write_seeds(name, folder):
    """For one of the C targets."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, seed in enumerate(conversations() if name == "agent" else [archive()]):
        (folder / str(number)).write_bytes(seed)
