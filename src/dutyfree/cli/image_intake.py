"""The verbs of `dutyfree image` that bring images in: `import` from files and engines, `pull` from registries."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from dutyfree.cli.words import human, printable, size
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.image.catalogue import release
from dutyfree.image.resolve import check_name
from dutyfree.image.root import Progress, ignore
from dutyfree.image.store import Manifest, Store

if TYPE_CHECKING:
    import rich.progress

_ENGINES = ("docker", "podman")


def add_arguments(verbs: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Both verbs."""
    source = verbs.add_parser("import", help="keep a rootfs or a container image under a name")
    source.add_argument(
        "path",
        help="a rootfs directory or a tar of one, an OCI layout or a tar of one, a `docker save` archive (tars also"
        " compressed), docker:IMAGE or podman:IMAGE of a running engine",
    )
    source.add_argument("--reference", metavar="NAME", help="which image, where an archive holds several")
    source.add_argument("--socket", metavar="PATH", help="the engine's, if it is not where engines put theirs")
    pull = verbs.add_parser("pull", help="fetch an image from a registry")
    pull.add_argument("reference", metavar="REF", help="[host[:port]/]repository[:tag][@digest]")
    pull.add_argument("--user", metavar="NAME", help="log in as; by default as `docker login` or `podman login` did")
    pull.add_argument("--password-stdin", action="store_true", help="read the password from stdin")
    pull.add_argument("--plain-http", action="store_true", help="no TLS, for registries beyond this machine too")
    for verb in (source, pull):
        verb.add_argument("--platform", metavar="OS/ARCH", help="as in linux/arm64; this machine's by default")
        verb.add_argument("--max-size", type=size, metavar="SIZE", help="refuse more than this unpacked, as in 20G")
        verb.add_argument("--force", action="store_true", help="take the name from the image that has it")
    source.add_argument("--name", required=True, help="what to call it")
    pull.add_argument(
        "--name", help="what to call it; by default the last part of the repository, and its tag: python-3.12"
    )


def bring(store: Store, args: argparse.Namespace) -> int:
    """`dutyfree image import`."""
    from dutyfree.image.archive import MAX_BYTES  # noqa: PLC0415 (tar and decompressors: here only)

    _check_free(store, args.name, force=args.force)
    most = args.max_size or MAX_BYTES
    kind, colon, image = str(args.path).partition(":")
    if colon and kind in _ENGINES and not Path(args.path).exists():
        manifest = _from_engine(store, kind, image, args, most)
    else:
        manifest = _from_path(store, Path(args.path).absolute(), args, most)
    return _keep(store, args.name, manifest)


def pull(store: Store, args: argparse.Namespace) -> int:
    """`dutyfree image pull`."""
    from dutyfree.image.archive import MAX_BYTES  # noqa: PLC0415 (as above)
    from dutyfree.image.oci.credential import Credential, look_up  # noqa: PLC0415
    from dutyfree.image.oci.document import this_platform  # noqa: PLC0415
    from dutyfree.image.oci.intake import import_image  # noqa: PLC0415
    from dutyfree.image.oci.reference import parse_reference  # noqa: PLC0415

    reference = parse_reference(args.reference)
    name = args.name or reference.short
    _check_free(store, name, force=args.force)
    try:
        from dutyfree.image.oci.registry import Registry  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise Unavailable(
            f"pulling needs {error.name}, which is not installed", enable="pip install 'dutyfree[oci]'"
        ) from error
    credential = look_up(reference.host, os.environ)
    if args.user is not None:
        if not args.password_stdin:
            raise Misuse("the password comes by --password-stdin", field="user")
        credential = Credential(user=args.user, password=sys.stdin.readline().rstrip("\n"))
    most = args.max_size or MAX_BYTES
    with (
        _bars("fetching", "unpacking") as (fetching, unpacking),
        Registry(
            reference, store, credential=credential, plain_http=args.plain_http, max_bytes=most, progress=fetching
        ) as registry,
    ):
        found = registry.find(args.platform or this_platform())
        manifest = import_image(store, found, max_bytes=most, progress=unpacking)
    return _keep(store, name, manifest)


class _Bar(Progress):
    """One line of a display on stderr."""

    def __init__(self, display: rich.progress.Progress, what: str) -> None:
        self._display = display
        self._task = display.add_task(what, total=None, visible=False)
        self._expected = 0

    def expect(self, size_bytes: int) -> None:
        """Show the line, if there is anything to do."""
        self._expected += size_bytes
        self._display.update(self._task, total=self._expected or None, visible=True)

    def advance(self, size_bytes: int) -> None:
        """Move on."""
        self._display.advance(self._task, size_bytes)


@contextlib.contextmanager
def _bars(*what: str) -> Iterator[list[Progress]]:
    """A bar for each step, where somebody is looking; gone at the end."""
    if not sys.stderr.isatty():
        yield [ignore for _ in what]
        return
    from rich import progress  # noqa: PLC0415 (a quarter of a second that nobody else need pay)
    from rich.console import Console  # noqa: PLC0415

    columns = (
        progress.TextColumn("{task.description}"), progress.BarColumn(bar_width=30), progress.DownloadColumn(binary_units=True),
        progress.TransferSpeedColumn(), progress.TimeRemainingColumn(),
    )  # fmt: skip
    with progress.Progress(*columns, console=Console(stderr=True), transient=True) as display:
        yield [_Bar(display, one) for one in what]


def _check_free(store: Store, name: str, *, force: bool) -> None:
    check_name(name)
    if store.named(name) is not None and not force:
        raise Misuse(
            f"{name!r} is taken: `dutyfree image remove {name}` first, or --force, or another --name", field="name"
        )


def _from_path(store: Store, path: Path, args: argparse.Namespace, max_bytes: int) -> Manifest:
    from dutyfree.image.intake import holds_image, import_archive, import_directory  # noqa: PLC0415
    from dutyfree.image.oci.intake import import_path  # noqa: PLC0415

    if not path.exists():
        raise Misuse(f"there is nothing at {path}", field="path")
    if path.is_dir() and path.samefile("/"):
        raise Misuse("'/' is this machine itself, secrets and all; use the image 'host'", field="path")
    if path.is_dir():
        is_image = (path / "oci-layout").exists() or (path / "manifest.json").exists()
    else:
        with path.open("rb") as file:
            is_image = holds_image(file)
    if not is_image and (args.reference or args.platform):
        raise Misuse(f"{path} is a plain filesystem: it holds one, for no platform", field="reference")
    with _bars("unpacking") as (progress,):
        if is_image:
            return import_path(
                store,
                path,
                reference=args.reference,
                platform=args.platform,
                max_bytes=max_bytes,
                progress=progress,
            )
        return (import_directory if path.is_dir() else import_archive)(
            store, path, max_bytes=max_bytes, progress=progress
        )


def _from_engine(store: Store, kind: str, image: str, args: argparse.Namespace, max_bytes: int) -> Manifest:
    from dutyfree.image.oci.document import this_platform  # noqa: PLC0415
    from dutyfree.image.oci.intake import import_image  # noqa: PLC0415
    from dutyfree.substrates.container.engine_save import find_socket, stored_image  # noqa: PLC0415

    with store.draft_layer() as draft:
        stored = stored_image(
            args.socket or find_socket(kind, os.environ),
            kind,
            image,
            draft.path / "image.tar",
            reference=args.reference,
            platform=args.platform or this_platform(),
        )
        with _bars("unpacking") as (progress,), stored as source:
            return import_image(store, source, max_bytes=max_bytes, progress=progress)


def _keep(store: Store, name: str, manifest: Manifest) -> int:
    before = store.named(name)
    if not store.images.hold(manifest.key):
        raise Unavailable(f"another process collected {name!r} before it had its name; ask again", step="image")
    store.names.give(name, manifest.key)
    if before is not None and before != manifest.key and store.manifest(before) is not None:
        release(store, before)
    for note in manifest.notes:
        print(f"note: {printable(note)}", file=sys.stderr)
    layers = f", {len(manifest.layers)} layers" if len(manifest.layers) > 1 else ""
    print(f"{name}: {human(manifest.size_bytes)}{layers}, key {manifest.key[:12]}")
    return 0
