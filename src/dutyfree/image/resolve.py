"""From the name of an image to what a sandbox is mounted from.

A name is `host`, `bench`, a name given by `dutyfree image import`, `snapshot:<key>`, or the absolute path of a rootfs
directory or tar.
Resolving blocks (it may unpack an archive), so it belongs in a thread; a name resolved before costs microseconds. Every
image answered is held in its store: `dutyfree image remove` deletes it only when the holder is gone.
"""

from __future__ import annotations

import difflib
import os
import re
import shlex
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from dutyfree.core.contract import SNAPSHOT_PREFIX
from dutyfree.core.errors import DriverError, Misuse, Unavailable, Unsupported
from dutyfree.image import host as image_host
from dutyfree.image import rootfs as image_rootfs
from dutyfree.image.names import ALIAS
from dutyfree.image.store import Manifest, Store

BUILD_BENCH = "dutyfree image build bench"

_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
_HOST_SIGNS = ("/etc/ld.so.cache", "/etc/alternatives")
"""What changes when programs are installed on the host: the skeleton is then looked at again."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Image:
    """Layers that a sandbox is mounted from. Nothing ever writes to them."""

    name: str
    """As the caller said."""
    key: str
    """Changes when the content does (hex)."""
    layers: tuple[Path, ...]
    """Read-only directories, uppermost first."""
    layer_keys: tuple[str, ...] = ()
    """The same, as `Store.save_snapshot` takes them."""
    binds: tuple[tuple[Path, str], ...] = ()
    """Host directories to bind, read-only and with what is mounted below them, on absolute paths inside."""
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: str | None = None
    user: str | None = None


@dataclass(frozen=True, slots=True)
class _Remembered:
    image: Image
    signs: tuple[object, ...]


def resolve(name: str, store: Store) -> Image:
    """Find the image that `name` stands for. Blocks the first time.

    Raises Misuse naming `image` for a name that is unknown or no fit root, Unavailable for one that could be had.
    """
    if (image := remembered(name, store)) is not None:
        return image
    try:
        image = _find(name, store)
    except OSError as error:  # what is wrong with the image itself is Misuse by now: this is the store's disk
        raise DriverError(f"image {name[:200]!r} cannot be had: {error}", step="image") from error
    store.memo[name] = _Remembered(image, _signs(image, store))
    return image


def resolve_root(name: str, store: Store) -> Image:
    """The same for a sandbox that has a root of its own, and nothing of the host's: in containers and machines."""
    if name == "host":
        raise Unsupported(
            "image 'host' is this machine's own /usr, which a container does not share: use image 'bench', "
            f"made by `{BUILD_BENCH}`"
        )
    image = resolve(name, store)
    if image.binds:
        raise Unsupported("an alias of the host image is not offered in containers")
    return image


def remembered(name: str, store: Store) -> Image | None:
    """Return an earlier answer of `resolve` if it still holds: a few stats, so it needs no thread."""
    memo = store.memo.get(name)
    return memo.image if isinstance(memo, _Remembered) and _signs(memo.image, store) == memo.signs else None


def check_name(name: str) -> None:
    """Refuse what cannot be the name of an image of one's own."""
    if not _NAME.fullmatch(name):
        raise Misuse(f"{name!r} is no name: lower-case letters, digits, and . _ - after the first", field="name")
    if name == ALIAS:
        raise Misuse(f"{name!r} always means this machine's own programs; choose another name", field="name")


def known(store: Store) -> list[str]:
    """Every name that means something here, built or not."""
    return sorted({"host", "bench", *(name for name in store.names.all() if not name.startswith(SNAPSHOT_PREFIX))})


def _find(name: str, store: Store) -> Image:
    if "\0" in name:
        raise Misuse("has a NUL in it", field="image")
    if name == "host":
        return _host(name, store)
    if name.startswith("/"):
        return _at_path(name, store)
    snapshot = name.startswith(SNAPSHOT_PREFIX)
    key = store.named(name) if snapshot or _NAME.fullmatch(name) else None
    if key == ALIAS:
        return _host(name, store)
    if key is not None and (image := _stored(name, key, store)) is not None:
        return image
    if key is not None and store.named(name) == key:
        raise Unavailable(
            f"image {name!r} is damaged: {store.images.directory(key)}/image.json cannot be read",
            enable=f"dutyfree image remove {name}, and import it again",
        )
    if name == "bench":
        raise Unavailable("image 'bench' is not built yet", enable=BUILD_BENCH)
    if snapshot:
        raise Misuse(f"there is no {name[:200]!r}: it was removed, or made elsewhere", field="image")
    raise _unknown(name, store)


def _host(name: str, store: Store) -> Image:
    manifest, skeleton = image_host.provide(store)
    image = _stored(name, manifest.key, store)
    if image is None:
        raise Unavailable("the host image was removed while it was resolved; ask again")
    return replace(image, binds=skeleton.binds)


def _at_path(name: str, store: Store) -> Image:
    path = Path(name)
    try:
        mode = path.stat().st_mode
    except (OSError, ValueError) as error:
        raise Misuse(f"there is no rootfs at {name!r} ({error})", field="image") from error
    if stat.S_ISDIR(mode):
        return _directory(name, path.resolve())
    if stat.S_ISREG(mode):
        return _archive(name, path, store)
    raise Misuse(f"{name!r} is neither a directory nor a file", field="image")


def _directory(name: str, path: Path) -> Image:
    if path.samefile("/"):
        raise Misuse("'/' would show everything this machine has; use 'host'", field="image")
    try:
        image_rootfs.check(path, name=name)
        key = image_rootfs.fingerprint(path)
    except OSError as error:  # no permission, or it is being changed
        raise Misuse(f"{name!r} cannot be read: {error}", field="image") from error
    return Image(name=name, key=key, layers=(path,), layer_keys=(os.fspath(path),))


def _archive(name: str, path: Path, store: Store) -> Image:
    # Here and not above: tar and the decompressors cost more to import than a sandbox to start.
    from dutyfree.image.intake import import_archive, stamp  # noqa: PLC0415

    place, signs = path.resolve(), stamp(path.stat())
    noted = store.names.recall(place)
    if noted is not None and noted[0] == signs and store.images.whole(noted[1]) is not None:
        image = _stored(name, noted[1], store)
        if image is not None:
            return image
    manifest = import_archive(store, path)
    store.names.note(place, signs, manifest.key)
    image = _stored(name, manifest.key, store)
    if image is None:
        raise Unavailable(f"image {name!r} was removed while it was imported; ask again")
    return image


def _stored(name: str, key: str, store: Store) -> Image | None:
    if not store.images.hold(key):
        return None
    manifest = store.manifest(key)
    if manifest is None:
        return None
    gone = [layer for layer in manifest.layers if not store.layers.path(layer).exists()]
    if gone:
        raise Unavailable(
            f"image {name[:200]!r} lacks {len(gone)} of its {len(manifest.layers)} layers: {store.layers.path(gone[0])} is gone",
            enable=remedy(manifest, name),
            step="image",
        )
    return _image(name, manifest, store)


def remedy(manifest: Manifest, name: str) -> str:
    """The command that makes an image of the store again, under the name that it has, or its path."""
    if manifest.kind == "bench":
        return "dutyfree image build bench --force"
    if manifest.kind == "snapshot":
        return f"dutyfree image remove {name}, and take it again"
    if manifest.kind == "host" or name.startswith("/"):
        return f"dutyfree run --image {shlex.quote(name or 'host')} -- true"
    if not name:
        return f"dutyfree image remove {manifest.key[:12]}"
    verb = "import" if manifest.source.startswith(("/", "docker:", "podman:")) else "pull"
    return f"dutyfree image {verb} {shlex.quote(manifest.source)} --name {name} --force"


def _image(name: str, manifest: Manifest, store: Store) -> Image:
    return Image(
        name=name,
        key=manifest.key,
        layers=store.images.layer_paths(manifest),
        layer_keys=manifest.layers,
        binds=tuple((Path(source), target) for source, target in manifest.binds),
        env=manifest.env,
        cwd=manifest.cwd,
        user=manifest.user,
    )


def _signs(image: Image, store: Store) -> tuple[object, ...]:
    """Facts that must be unchanged for an earlier answer to hold: a few calls to stat."""
    signs: list[object] = [_sign(os.fspath(layer)) for layer in image.layers]
    signs.append(_sign(f"{store.root}/images/{image.key}/image.json"))
    if image.binds:
        signs += [_sign(path) for path in _HOST_SIGNS]
    if image.name.startswith("/"):
        signs.append(_sign(image.name))
    elif image.name != ALIAS:
        signs.append(store.named(image.name))
    return tuple(signs)


def _sign(path: str) -> tuple[int, ...] | None:
    try:
        # Not by pathlib, which takes longer than the call: this is on the way to every sandbox.
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_mtime_ns, status.st_size


def _unknown(name: str, store: Store) -> Misuse:
    names = known(store)
    close = difflib.get_close_matches(name, names, n=1)
    guess = f" Did you mean {close[0]!r}?" if close else ""
    relative = " A path must be absolute." if "/" in name else ""
    return Misuse(
        f"there is no image {name[:200]!r}.{guess}{relative} Known: {', '.join(names)}, and the absolute path of a"
        " rootfs directory or tar",
        field="image",
    )
