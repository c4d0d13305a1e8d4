"""Names of images in registries: `[host[:port]/]repository[:tag][@digest]`, with the defaults everybody is used to."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dutyfree.core.errors import Misuse

_HUB = "docker.io"
_HUB_HOST = "registry-1.docker.io"
_REPOSITORY = re.compile(r"[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*(?:/[a-z0-9]+(?:(?:[._]|__|-+)[a-z0-9]+)*)*")
_TAG = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}")
_HOST = re.compile(r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9a-fA-F:]+\])(?::[0-9]{1,5})?")


@dataclass(frozen=True, kw_only=True, slots=True)
class Reference:
    """Address of an image."""

    host: str
    """As people write it: `docker.io`, `127.0.0.1:5000`."""
    repository: str
    tag: str
    digest: str | None = None
    """Goes before the tag."""

    @property
    def api_host(self) -> str:
        """Host that answers the registry's API."""
        return _HUB_HOST if self.host == _HUB else self.host

    @property
    def is_local(self) -> bool:
        """On this machine, where registries speak plain HTTP."""
        name = self.host.rsplit(":", 1)[0] if not self.host.endswith("]") else self.host
        return name in ("localhost", "[::1]") or name.startswith("127.")

    @property
    def short(self) -> str:
        """A name for the image in the store: the end of the repository, and the tag that tells it from its siblings."""
        last = self.repository.rpartition("/")[2]
        if self.digest:
            return f"{last}-{self.digest.partition(':')[2][:12]}"
        return last if self.tag == "latest" else f"{last}-{self.tag.lower()}"

    def __str__(self) -> str:
        return f"{self.host}/{self.repository}:{self.tag}" + (f"@{self.digest}" if self.digest else "")


def parse_reference(text: str) -> Reference:
    """Parse a reference that a person wrote; Misuse if it is none."""
    rest, at, digest = text.partition("@")
    head, slash, tail = rest.partition("/")
    # As every engine does: the first part is a host if nothing else could look like it.
    is_host = slash and ("." in head or ":" in head or head == "localhost")
    host, path = (head, tail) if is_host else (_HUB, rest)
    repository, colon, tag = path.partition(":")
    if host == _HUB and "/" not in repository:
        repository = f"library/{repository}"
    fine = (
        len(text) <= 512
        and _HOST.fullmatch(host)
        and _REPOSITORY.fullmatch(repository)
        and (not colon or _TAG.fullmatch(tag))
        and (not at or _DIGEST.fullmatch(digest))
    )
    if not fine:
        raise Misuse(
            f"{text[:200]!r} is no image reference: [host[:port]/]repository[:tag][@digest]", field="reference"
        )
    return Reference(host=host, repository=repository, tag=tag or "latest", digest=digest or None)
