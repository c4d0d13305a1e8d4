"""Pulls images from a registry by the distribution API: manifests, tokens, and blobs that continue where they stopped.

Blobs are fetched a few at a time into `<root>/downloads`, and are not used before their digest was checked. A
connection that breaks is taken up again where it broke, as long as each attempt brings something; what a killed process
got is there for the next. The registry may be hostile: every answer is bounded, and read as it comes, since a few bytes
can be decompressed to as many as one likes.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

import httpx

from dutyfree import __version__
from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, Unavailable
from dutyfree.image.archive import MAX_BYTES
from dutyfree.image.oci.credential import Credential
from dutyfree.image.oci.document import (
    INDEX_TYPES,
    MANIFEST_TYPES,
    MAX_DOCUMENT_BYTES,
    Descriptor,
    configuration,
    descriptors,
    parse,
    wrong,
)
from dutyfree.image.oci.reference import Reference
from dutyfree.image.oci.source import (
    Blob,
    Source,
    check_platform,
    check_size,
    digest_of,
    from_manifest,
    narrow,
    verified,
)
from dutyfree.image.root import Progress, ignore
from dutyfree.image.store import Store

PARALLEL = 4
"""Blobs at a time: what engines do."""

_PATIENCE_S = 60.0
_MAX_ATTEMPTS = 8
_MAX_REDIRECTS = 8
_CHUNK_BYTES = 1 << 18
_HEADERS_BYTES = 16 << 20
"""What a tar has besides the files that count for the cap, packed."""
_CHALLENGE = re.compile(r'([a-zA-Z]+)="([^"]*)"')
_ACCEPT = ", ".join((*MANIFEST_TYPES, *INDEX_TYPES))


class Registry:
    """One repository of one registry; a context, since it owns connections and threads."""

    def __init__(
        self,
        reference: Reference,
        store: Store,
        *,
        credential: Credential | None = None,
        plain_http: bool = False,
        max_bytes: int = MAX_BYTES,
        progress: Progress = ignore,
    ) -> None:
        self._progress = progress
        self._max_bytes = max_bytes
        self._reference = reference
        self._store = store
        self._credential = credential
        scheme = "http" if plain_http or reference.is_local else "https"
        self._base = f"{scheme}://{reference.api_host}/v2/{reference.repository}"
        self._authorization: str | None = None
        headers = {"User-Agent": f"dutyfree/{__version__}", "Accept-Encoding": "identity"}
        self._client = httpx.Client(timeout=_PATIENCE_S, headers=headers)
        self._pool = ThreadPoolExecutor(max_workers=PARALLEL, thread_name_prefix="dutyfree-pull")
        self._fetching: dict[str, Future[Path]] = {}
        self._items: dict[str, Descriptor] = {}
        self._closing = False

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *exc: object) -> None:
        # A thread looks at this between chunks, so an interrupt is not held up by what is on its way.
        self._closing = True
        self._pool.shutdown(cancel_futures=True)
        self._client.close()

    def find(self, platform: str) -> Source:
        """The image for a platform."""
        name = str(self._reference)
        text = self._manifest(self._reference.digest or self._reference.tag)
        if self._reference.digest and digest_of(text, self._reference.digest) != self._reference.digest:
            raise wrong(f"{name}: the registry's manifest is not the one of that digest")
        document = parse(text, "the manifest")
        if "manifests" in document:
            text = narrow(self, descriptors(document, "manifests"), platform)
        source = from_manifest(self, text, name=name)
        check_platform(configuration(source.config).platform, platform, name)
        return Source(name=name, config=source.config, layers=source.layers, fetch=self._fetch)

    def document(self, item: Descriptor) -> bytes:
        """`Documents.document`."""
        check_size(item)
        if item.media_type in (*INDEX_TYPES, *MANIFEST_TYPES):
            return verified(self._manifest(item.digest), item)
        with self._asked(f"{self._base}/blobs/{item.digest}") as reply:
            return verified(_bounded(reply), item)

    def blob(self, item: Descriptor) -> Blob:
        """`Documents.blob`."""
        self._items[item.digest] = item
        return Blob(digest=item.digest, open=lambda: self._opened(item), size=item.size)

    def _fetch(self, blobs: Sequence[Blob]) -> None:
        size = sum(self._items[digest].size for digest in {blob.digest for blob in blobs})
        if size > self._max_bytes + _HEADERS_BYTES:
            raise wrong(f"{self._reference} has {size} bytes to fetch, over the cap of {self._max_bytes} bytes")
        self._progress.expect(size)
        for blob in blobs:
            self._start(self._items[blob.digest])

    def _start(self, item: Descriptor) -> Future[Path]:
        if item.digest not in self._fetching:
            self._fetching[item.digest] = self._pool.submit(self._download, item)
        return self._fetching[item.digest]

    @contextlib.contextmanager
    def _opened(self, item: Descriptor) -> Iterator[IO[bytes]]:
        path = self._start(item).result()
        with path.open("rb") as file:
            yield file
        # An image may have the same layer twice.
        del self._fetching[item.digest]
        path.unlink(missing_ok=True)

    def _download(self, item: Descriptor) -> Path:
        """The file of a blob, whole and checked."""
        self._store.prepare()
        path = self._store.root / "downloads" / item.digest.replace(":", "-")
        with self._store.exclusive(f"download {path.name}"):
            for _ in range(_MAX_ATTEMPTS):
                before = path.stat().st_size if path.exists() else 0
                try:
                    return self._continue(item, path)
                except httpx.TransportError as error:
                    if not path.exists() or path.stat().st_size <= before:
                        raise self._silent(error) from error
        raise Unavailable(f"registry {self._reference.host} breaks off again and again", step="image")

    def _continue(self, item: Descriptor, path: Path) -> Path:
        digest = hashlib.new(item.digest.partition(":")[0])
        with path.open("a+b") as file:
            file.seek(0)
            while data := file.read(_CHUNK_BYTES):
                digest.update(data)
            start = file.tell()
            if start < item.size or item.size == 0:
                headers = {"Range": f"bytes={start}-"} if start else {}
                with self._asked(f"{self._base}/blobs/{item.digest}", headers) as reply:
                    if start and reply.status_code != httpx.codes.PARTIAL_CONTENT:
                        file.truncate(0)
                        digest = hashlib.new(digest.name)
                        start = 0
                    self._receive(reply, file, digest, item.size - start)
        if path.stat().st_size != item.size or f"{digest.name}:{digest.hexdigest()}" != item.digest:
            path.unlink()
            raise wrong(f"blob {item.digest[:19]} is damaged: its bytes are not those its digest names")
        return path

    def _receive(self, reply: httpx.Response, file: IO[bytes], digest: Any, left: int) -> None:
        for data in reply.iter_raw(_CHUNK_BYTES):
            left -= len(data)
            if left < 0 or self._closing:
                raise wrong("the registry sends more than it said") if left < 0 else InterruptedError
            digest.update(data)
            file.write(data)
            self._progress.advance(len(data))
            # So that what came counts, whatever comes next.
            file.flush()
        if left > 0:
            raise httpx.RemoteProtocolError("the blob ends early")

    # -- requests

    def _manifest(self, which: str) -> bytes:
        with self._asked(f"{self._base}/manifests/{which}", {"Accept": _ACCEPT}) as reply:
            return _bounded(reply)

    @contextlib.contextmanager
    def _asked(self, url: str, headers: dict[str, str] | None = None) -> Iterator[httpx.Response]:
        """A reply that is what was asked for; asks for a token where the registry wants one."""
        for again in (True, False):
            ours = dict(headers or {}) | ({"Authorization": self._authorization} if self._authorization else {})
            try:
                with self._stream(url, headers=ours) as reply:
                    if reply.status_code == httpx.codes.UNAUTHORIZED and again:
                        self._authorization = self._authorize(reply.headers.get("WWW-Authenticate", ""))
                        continue
                    self._check(reply)
                    yield reply
                    return
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol) as error:
                raise self._silent(error) from error

    @contextlib.contextmanager
    def _stream(
        self, url: str, *, headers: dict[str, str], params: dict[str, str] | None = None
    ) -> Iterator[httpx.Response]:
        """The answer, after redirections. httpx, left to follow them, would read the whole of each on the way."""
        request = self._client.build_request("GET", url, headers=headers, params=params)
        for _ in range(_MAX_REDIRECTS):
            reply = self._client.send(request, stream=True)
            try:
                if reply.next_request is None:
                    yield reply
                    return
                request = reply.next_request
            finally:
                reply.close()
        raise wrong(f"registry {self._reference.host} redirects again and again")

    def _authorize(self, challenge: str) -> str:
        kind, _, rest = challenge.partition(" ")
        fields = dict(_CHALLENGE.findall(rest))
        if kind.lower() == "basic" and self._credential is not None:
            return _basic(self._credential)
        if kind.lower() != "bearer" or "realm" not in fields:
            raise self._refused("it wants a login")
        realm = fields["realm"]
        if urlsplit(realm).scheme != "https" and self._base.startswith("https:"):
            raise wrong(f"registry {self._reference.host} would send the password to {realm[:200]!r}, unencrypted")
        asked = {name: fields[name] for name in ("service", "scope") if name in fields}
        asked.setdefault("scope", f"repository:{self._reference.repository}:pull")
        headers = {"Authorization": _basic(self._credential)} if self._credential else {}
        try:
            with self._stream(realm, headers=headers, params=asked) as reply:
                if reply.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
                    raise self._refused("the login is not accepted")
                token = parse(_bounded(reply), "the registry's token")
        except (httpx.TransportError, httpx.InvalidURL, httpx.UnsupportedProtocol) as error:
            raise self._silent(error) from error
        return f"Bearer {token.get('token') or token.get('access_token') or ''}"

    def _check(self, reply: httpx.Response) -> None:
        if reply.is_success:
            return
        if reply.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise self._refused("the login is not accepted" if self._credential else "it wants a login")
        if reply.status_code == httpx.codes.NOT_FOUND:
            raise Misuse(f"registry {self._reference.host} has no {self._reference}", field="reference")
        raise DriverError(
            f"registry {self._reference.host} answers {reply.status_code} {reply.reason_phrase}", step="image"
        )

    def _refused(self, why: str) -> Unavailable:
        return Unavailable(
            f"registry {self._reference.host} refuses: {why}",
            enable=f"docker login {self._reference.host}, or --user NAME --password-stdin",
            step="image",
        )

    def _silent(self, error: Exception) -> DutyfreeError:
        return Unavailable(f"registry {self._reference.host} does not answer: {error}", step="image")


def _basic(credential: Credential) -> str:
    request = httpx.Request("GET", "http://registry")
    flow = httpx.BasicAuth(credential.user, credential.password).auth_flow(request)
    return next(flow).headers["Authorization"]


def _bounded(reply: httpx.Response) -> bytes:
    text = bytearray()
    for data in reply.iter_raw(_CHUNK_BYTES):
        text += data
        if len(text) > MAX_DOCUMENT_BYTES:
            raise wrong("the registry sends a document larger than any image has")
    return bytes(text)
