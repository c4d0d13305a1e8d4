"""`dutyfree image`: make, bring in, write out, list, check and remove images of the native substrate."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict
from pathlib import Path

from dutyfree.cli import image_intake
from dutyfree.cli.parser import Parser
from dutyfree.cli.words import human, printable, size
from dutyfree.core.errors import Misuse
from dutyfree.image.catalogue import Row, catalogue, remove
from dutyfree.image.names import ALIAS
from dutyfree.image.store import Store

HELP = "build, import, pull, export, list, verify and remove images of the native substrate"


def add_arguments(parser: Parser) -> None:
    """The verbs."""
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")

    build = verbs.add_parser("build", help="make the common benchmark rootfs")
    build.add_argument("recipe", choices=["bench"], help="what to build")
    build.add_argument("--force", action="store_true", help="again, even if the same recipe was built before")
    build.add_argument(
        "--tool", choices=["mmdebstrap", "debootstrap", "host"], help="how; by default the best this machine has"
    )

    image_intake.add_arguments(verbs)

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

    check = verbs.add_parser("verify", help="read every byte, and compare with what was imported")
    check.add_argument("name", nargs="?", help="one image; all that is stored by default")
    check.add_argument("--json", action="store_true", help="for programs")

    clean = verbs.add_parser("gc", help="delete what nothing needs; images nobody named too, if asked")
    clean.add_argument("--keep-bytes", type=size, metavar="SIZE", help="until no more than this is left, as in 20G")
    clean.add_argument("--older-than", type=_duration, metavar="AGE", help="not used for this long, as in 7d or 12h")

    drop = verbs.add_parser("remove", help="remove an image; running sandboxes keep theirs")
    drop.add_argument("name", help="a name, the beginning of a key, or the path that was imported")


def run(args: argparse.Namespace) -> int:
    """Do what was asked; the exit code."""
    store = Store.default()
    verbs = {
        "build": _build, "import": image_intake.bring, "pull": image_intake.pull, "export": _export, "list": _list,
        "verify": _verify, "gc": _gc, "remove": _remove,
    }  # fmt: skip
    try:
        return verbs[args.verb](store, args)
    finally:
        store.close()


def _build(store: Store, args: argparse.Namespace) -> int:
    from dutyfree.image.bench import build  # noqa: PLC0415 (tar and decompressors: for this verb only)

    start = time.monotonic()
    built = build(store, progress=_progress, force=args.force, tool=args.tool)
    for note in built.notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    how = "was there already" if built.cached else f"built in {time.monotonic() - start:.1f} s"
    size = "" if built.manifest is None else f", {human(built.manifest.size_bytes)}, key {built.manifest.key[:12]}"
    print(f"bench: {how} ({built.tool}{size})")
    return 0


def _export(store: Store, args: argparse.Namespace) -> int:
    from dutyfree.image.pack import export, reference  # noqa: PLC0415
    from dutyfree.image.resolve import resolve  # noqa: PLC0415 (as in _build)

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


def _verify(store: Store, args: argparse.Namespace) -> int:
    from dutyfree.image.resolve import remedy, resolve  # noqa: PLC0415 (as in _build)
    from dutyfree.image.verify import verify  # noqa: PLC0415

    manifest = None
    if args.name is not None:
        # By its name where it has one: what cannot be resolved can still be looked at.
        key = store.named(args.name)
        manifest = (store.manifest(key) if key is not None else None) or store.manifest(resolve(args.name, store).key)
        if manifest is None:
            raise Misuse(f"{args.name!r} is used where it is: there is nothing to compare it with", field="name")
    words = {True: "intact", False: "DAMAGED", None: "made without a digest"}
    broken: set[str] = set()
    verdicts = []
    for verdict in verify(store, manifest):
        verdicts.append(verdict)
        if not args.json:
            used = ", ".join(key[:12] for key in verdict.images) or "no image"
            word = "MISSING" if verdict.missing else words[verdict.intact]
            print(f"{verdict.layer.key[:12]}  {human(verdict.layer.size_bytes)}  {word}  ({used})")
        if verdict.intact is False:
            broken.update(verdict.images)
    lost = [name for name, key in store.names.all().items() if key != ALIAS and store.manifest(key) is None]
    lost = [name for name in lost if args.name in (None, name)]
    damaged = sum(verdict.intact is False for verdict in verdicts) + len(lost)
    if args.json:
        print(json.dumps({"layers": [asdict(verdict) for verdict in verdicts], "damaged": damaged}, indent=2))
    elif damaged:
        print(f"{damaged} damaged or missing; each of these makes an image whole again:", file=sys.stderr)
        for row in catalogue(store):
            found = store.manifest(row.key) if row.key in broken else None
            if found is not None:
                name = row.name or (found.source if found.source.startswith("/") else "")
                print(f"  {printable(remedy(found, name))}", file=sys.stderr)
        for name in lost:
            print(f"  dutyfree image remove {name}, and import it again", file=sys.stderr)
    return 1 if damaged else 0


def _gc(store: Store, args: argparse.Namespace) -> int:
    from dutyfree.image.collect import collect  # noqa: PLC0415 (as in _build)

    keep = store.limit_bytes if args.keep_bytes is None else args.keep_bytes
    done = collect(store.images, keep_bytes=keep, older_than_s=args.older_than)
    for manifest in done.removed:
        print(f"removed {manifest.key[:12]}  {manifest.kind}  {printable(manifest.source)}")
    print(f"{human(done.before_bytes)} before, {human(done.after_bytes)} now")
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


def _duration(text: str) -> float:
    number, unit = (text[:-1], text[-1].lower()) if text[-1:].isalpha() else (text, "s")
    scale = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
    if unit not in scale or not number.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is no age: a number, and s, m, h or d")
    return float(number) * scale[unit]
