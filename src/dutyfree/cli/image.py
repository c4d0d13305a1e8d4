"""`dutyfree image`: build, import, export, list and remove images of the native substrate."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from dutyfree.core.errors import Misuse
from dutyfree.substrates.image.catalogue import Row, catalogue, release, remove
from dutyfree.substrates.image.resolve import check_name
from dutyfree.substrates.image.store import Store

HELP = "build, import, export, list and remove images of the native substrate"

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The verbs."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    build = verbs.add_parser("build", help="make the common benchmark rootfs")
    build.add_argument("recipe", choices=["bench"], help="what to build")
    build.add_argument("--force", action="store_true", help="again, even if the same recipe was built before")
    build.add_argument(
        "--tool", choices=["mmdebstrap", "debootstrap", "host"], help="how; by default the best this machine has"
    )

    bring = verbs.add_parser("import", help="keep a rootfs under a name")
    bring.add_argument(
        "path", type=Path, help="a rootfs directory, or a tar of one (.gz, .xz, .bz2; .zst on Python 3.14)"
    )
    bring.add_argument("--name", required=True, help="what to call it")
    bring.add_argument("--max-size", type=_size, metavar="SIZE", help="refuse more than this unpacked, as in 20G")
    bring.add_argument("--force", action="store_true", help="take the name from the image that has it")

    give = verbs.add_parser("export", help="write an image as others load it")
    give.add_argument("name", help="bench, host, a name of yours, or the path of a rootfs")
    give.add_argument("-o", "--output", type=Path, required=True, help="the file (or, for oci, the directory) to make")
    give.add_argument(
        "--format",
        "--to",
        choices=["docker", "oci", "tar", "disk"],
        default="docker",
        help="docker: for `docker load`; oci: a layout; disk: ext4, for virtual machines",
    )

    show = verbs.add_parser("list", help="what there is")
    show.add_argument("--json", action="store_true", help="for programs")

    drop = verbs.add_parser("remove", help="remove an image; running sandboxes keep theirs")
    drop.add_argument("name", help="a name, the beginning of a key, or the path that was imported")


def run(args: argparse.Namespace) -> int:
    """Do what was asked; the exit code."""
    store = Store.default()
    try:
        return {"build": _build, "import": _import, "export": _export, "list": _list, "remove": _remove}[args.verb](
            store, args
        )
    finally:
        store.close()


def _build(store: Store, args: argparse.Namespace) -> int:
    from dutyfree.substrates.image.bench import build  # noqa: PLC0415 (tar and decompressors: for this verb only)

    start = time.monotonic()
    built = build(store, progress=_progress, force=args.force, tool=args.tool)
    for note in built.notes:
        print(f"note: {note}", file=sys.stderr)
    how = "was there already" if built.cached else f"built in {time.monotonic() - start:.1f} s"
    size = "" if built.manifest is None else f", {human(built.manifest.size_bytes)}, key {built.manifest.key[:12]}"
    print(f"bench: {how} ({built.tool}{size})")
    return 0


def _import(store: Store, args: argparse.Namespace) -> int:
    from dutyfree.substrates.image.archive import MAX_BYTES  # noqa: PLC0415 (as in _build)
    from dutyfree.substrates.image.intake import import_archive, import_directory  # noqa: PLC0415

    check_name(args.name)
    before = store.named(args.name)
    if before is not None and not args.force:
        raise Misuse(f"{args.name!r} is taken: `dutyfree image remove {args.name}` first, or --force", field="name")
    path = args.path.absolute()
    if not path.exists():
        raise Misuse(f"there is nothing at {path}", field="path")
    if path.is_dir() and path.samefile("/"):
        raise Misuse("'/' is this machine itself, secrets and all; use the image 'host'", field="path")
    bring = import_directory if path.is_dir() else import_archive
    manifest = bring(store, path, max_bytes=args.max_size or MAX_BYTES)
    store.give_name(args.name, manifest.key)
    if before is not None and before in (row.key for row in catalogue(store) if not row.name):
        release(store, before)
    for note in manifest.notes:
        print(f"note: {note}", file=sys.stderr)
    print(f"{args.name}: {human(manifest.size_bytes)}, key {manifest.key[:12]}")
    return 0


def _export(store: Store, args: argparse.Namespace) -> int:
    from dutyfree.substrates.image.pack import export, reference  # noqa: PLC0415
    from dutyfree.substrates.image.resolve import resolve  # noqa: PLC0415 (as in _build)

    image = resolve(args.name, store)
    target = args.output.absolute()
    export(image, args.format, target)
    size = sum(path.stat().st_size for path in [target, *target.rglob("*")] if path.is_file())
    print(f"{target}: {args.format}, {human(size)}, {reference(image)}")
    return 0


def _list(store: Store, args: argparse.Namespace) -> int:
    rows = catalogue(store)
    if args.json:
        print(json.dumps({"home": str(store.root), "images": [asdict(row) for row in rows]}, indent=2))
        return 0
    if not rows:
        print("no images yet: `host` is made at its first use, `dutyfree image build bench` makes the benchmarks' one")
        return 0
    table = [("NAME", "KEY", "SIZE", "MADE", "KIND", "SOURCE"), *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in table) for column in range(len(table[0]))]
    for line in table:
        print("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())
    return 0


def _remove(store: Store, args: argparse.Namespace) -> int:
    gone = remove(store, args.name)
    print(f"{args.name}: removed" + ("" if gone else "; still in use, so its files go when the last sandbox ends"))
    return 0


def _cells(row: Row) -> tuple[str, ...]:
    made = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.made_s)) if row.made_s else "-"
    return row.name or "-", row.key[:12] or "-", human(row.size_bytes), made, row.kind, printable(row.source)


def _progress(line: str) -> None:
    print(f"  {printable(line)}", file=sys.stderr, flush=True)


def printable(text: str) -> str:
    """Text from elsewhere, without what a terminal would obey."""
    return "".join(char if char.isprintable() else "?" for char in text)


def human(size_bytes: float) -> str:
    """A size for people."""
    unit = 0
    while size_bytes >= 1024 and unit < len(_UNITS) - 1:
        size_bytes /= 1024
        unit += 1
    return f"{size_bytes:.0f} {_UNITS[unit]}" if unit == 0 else f"{size_bytes:.1f} {_UNITS[unit]}"


def _size(text: str) -> int:
    number, unit = (text[:-1], text[-1].upper()) if text[-1:].isalpha() else (text, "")
    scale = {"": 0, "K": 10, "M": 20, "G": 30, "T": 40}
    if unit not in scale or not number.isdecimal() or int(number) == 0:
        raise argparse.ArgumentTypeError(f"{text!r} is no size: a number, and K, M, G or T")
    return int(number) << scale[unit]
