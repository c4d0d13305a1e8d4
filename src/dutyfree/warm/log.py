"""`BuildLog`: what a build said, kept in a file and by its tail."""

from __future__ import annotations

from typing import BinaryIO

from dutyfree.core.text import printable

_TAIL_BYTES = 4096
_TAIL_LINES = 20


class BuildLog:
    """Written as the build goes on; without a file only the tail is kept."""

    def __init__(self, file: BinaryIO | None = None) -> None:
        self._file = file
        self._tail = b""

    def write(self, data: bytes) -> None:
        """Add to it."""
        if self._file is not None:
            self._file.write(data)
        self._tail = (self._tail + data)[-_TAIL_BYTES:]

    def line(self, text: str) -> None:
        """Add a line of our own."""
        self.write((b"" if self._tail[-1:] in (b"", b"\n") else b"\n") + text.encode(errors="replace") + b"\n")

    def tail(self) -> str:
        """The last lines, printable: what a terminal would obey is replaced."""
        lines = self._tail.decode(errors="replace").splitlines()[-_TAIL_LINES:]
        return "\n".join(printable(line, keep="\t") for line in lines)
