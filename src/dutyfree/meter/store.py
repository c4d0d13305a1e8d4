"""A run's directory: `manifest.json` (how it was measured) and `records.jsonl` (what was), written as it happens.

Nothing that was written is ever changed or removed: a line torn by a crash stays where it is, is reported, and the run
goes on behind it.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dutyfree.core.errors import Misuse
from dutyfree.meter.record import BadRecord, Record, parse

MANIFEST = "manifest.json"
RECORDS = "records.jsonl"
PACKED = "records.jsonl.gz"
"""A run that is over, as it is kept or sent: read like the other, never written to."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Problem:
    """A line that could not be used."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}, line {self.line}: {self.reason}; the line is left out, the rest is kept"


@dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """Content of a run's directory."""

    manifest: dict[str, Any]
    records: tuple[Record, ...]
    problems: tuple[Problem, ...]


class RecordWriter:
    """Appends records, each batch by one write that has reached the kernel when `append` returns."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        if not (directory / RECORDS).exists() and (directory / PACKED).exists():
            raise Misuse(
                f"{directory} holds a packed run; `gunzip {directory / PACKED}` before adding to it", field="-o"
            )
        self._file = (directory / RECORDS).open("ab+", buffering=0)
        size = self._file.seek(0, os.SEEK_END)
        if size:
            self._file.seek(size - 1)
            if self._file.read(1) != b"\n":
                self._file.write(b"\n")

    def append(self, records: Iterable[Record]) -> None:
        """Write them down."""
        self._file.write("".join(record.to_json() + "\n" for record in records).encode())

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


_PARTS = ("host", "protocol", "workloads", "subjects")
_MERGED = ("workloads", "subjects")


def write_manifest(directory: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest, atomically."""
    directory.mkdir(parents=True, exist_ok=True)
    draft = directory / f"{MANIFEST}.new"
    draft.write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    draft.replace(directory / MANIFEST)


def read_manifest(directory: Path) -> dict[str, Any] | None:
    """The manifest, or None where there is none; `Misuse` if it is not one."""
    path = directory / MANIFEST
    if not path.exists():
        return None
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise Misuse(f"{path} is not a manifest: {error}", field="directory") from error
    if not isinstance(manifest, dict) or not all(isinstance(manifest.get(part), dict) for part in _PARTS):
        raise Misuse(f"{path} is not a manifest: it lacks {', '.join(_PARTS)}", field="directory")
    return manifest


def read_records(directory: Path) -> tuple[list[Record], list[Problem]]:
    """Every record that can be read, in the order of the file, and what was wrong with the other lines."""
    path, content = _content(directory)
    records: list[Record] = []
    problems: list[Problem] = []
    seen: set[str] = set()
    lines = content.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            record = parse(line.decode())
            if record.id in seen:
                raise BadRecord(f"trial {record.id} is recorded twice; the first stands")  # noqa: TRY301
        except (BadRecord, UnicodeDecodeError) as error:
            torn = number == len(lines)
            problems.append(Problem(path=str(path), line=number, reason=f"{'half-written: ' if torn else ''}{error}"))
        else:
            seen.add(record.id)
            records.append(record)
    return records, problems


def _content(directory: Path) -> tuple[Path, bytes]:
    path, packed = directory / RECORDS, directory / PACKED
    if path.exists():
        return path, path.read_bytes()
    if not packed.exists():
        return path, b""
    try:
        return packed, gzip.decompress(packed.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise Misuse(f"{packed} cannot be unpacked: {error}", field="directory") from error


def load(directories: Sequence[Path]) -> Run:
    """One or more runs of the same host as one. Unlike hosts are refused, by name of what differs."""
    manifests: list[dict[str, Any]] = []
    records: list[Record] = []
    problems: list[Problem] = []
    for directory in directories:
        manifest = read_manifest(directory)
        if manifest is None:
            raise Misuse(
                f"{directory} holds no {MANIFEST}; `dutyfree measure -o {directory}` makes one", field="directory"
            )
        manifests.append(manifest)
        found, wrong = read_records(directory)
        records += found
        problems += wrong
    _check_alike(directories, manifests, records)
    return Run(manifest=_merged(manifests), records=tuple(records), problems=tuple(problems))


def _merged(manifests: list[dict[str, Any]]) -> dict[str, Any]:
    """The first one, with the substrates and workloads that only the others have."""
    parts = {name: {key: v for one in reversed(manifests) for key, v in one[name].items()} for name in _MERGED}
    return manifests[0] | parts


def _check_alike(directories: Sequence[Path], manifests: list[dict[str, Any]], records: list[Record]) -> None:
    first = manifests[0]["host"]
    for directory, manifest in zip(directories[1:], manifests[1:], strict=True):
        other = manifest["host"]
        if other["id"] != first["id"]:
            names = sorted(k for k in first.keys() | other.keys() if k != "id" and first.get(k) != other.get(k))
            raise Misuse(
                f"{directories[0]} and {directory} were measured on unlike hosts "
                f"({', '.join(names) or 'machine identity'} differ); report each by itself",
                field="directory",
            )
    if strangers := {record.host for record in records} - {first["id"]}:
        raise Misuse(
            f"records of another host ({', '.join(sorted(strangers))}) are mixed into a run of {first['id']}; "
            "unlike hosts are not merged",
            field="directory",
        )
