"""Share of a sandbox's memory for its files, where they are in memory and the caller sets no limit."""

from __future__ import annotations

_PAGE_BYTES = 4096


def scratch_bytes(memory_bytes: int) -> int:
    """Half, as the kernel itself has it for a tmpfs: whoever fills it is told so, and is not killed for memory."""
    return memory_bytes // 2


def scratch_files(memory_bytes: int) -> int:
    """As many as that has pages. Each costs the kernel about a KiB that cannot be taken back: an eighth in all."""
    return scratch_bytes(memory_bytes) // _PAGE_BYTES
