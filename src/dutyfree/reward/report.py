"""JUnit reports, written where the code under test runs: hostile input, bounded in size, elements, depth and tags.

Refuses document types, and with them entities, in whatever encoding: the parser says where one begins.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from xml.parsers import expat

REPORT_BYTES = 16 << 20
_MOST_ELEMENTS = 500_000
_MOST_DEPTH = 64
_MOST_TAG_BYTES = 256 << 10
"""Of one tag: the parser works through all its attributes in one go, in which no other thread of this process runs."""
_PIECE_BYTES = 64 << 10


class _RefusedError(Exception):
    """The report is not one that a test runner writes."""


class _Cases:
    """The handlers of one parse: which test cases there are, and which of them did anything but pass."""

    def __init__(self) -> None:
        self.passed: set[str] = set()
        self.failed: set[str] = set()
        self._names: tuple[str, str] | None = None
        self._case_depth = 0
        self._depth = self._elements = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self._depth += 1
        self._elements += 1
        if self._depth > _MOST_DEPTH or self._elements > _MOST_ELEMENTS:
            raise _RefusedError("has more elements, or deeper ones, than a test runner writes")
        if self._names and self._depth == self._case_depth + 1 and tag not in _REMARKS:
            self.failed.update(self._names)
        if tag == "testcase":
            name, owner = attributes.get("name", ""), attributes.get("classname", "")
            self._names, self._case_depth = (name, f"{owner}.{name}"), self._depth
            self.passed.update(self._names)

    def end(self, _tag: str) -> None:
        if self._depth == self._case_depth:
            self._names = None
        self._depth -= 1

    def doctype(self, *_: object) -> None:
        raise _RefusedError("defines entities")


_REMARKS = frozenset({"properties", "system-out", "system-err"})
"""Elements of a test case that say nothing of how it ended."""


def _feed(parser: expat.XMLParserType, data: bytes) -> None:
    for start in range(0, len(data), _PIECE_BYTES):
        parser.Parse(data[start : start + _PIECE_BYTES], False)
        if start - parser.CurrentByteIndex > _MOST_TAG_BYTES:
            raise _RefusedError(f"has a tag of more than {_MOST_TAG_BYTES} bytes")
    parser.Parse(b"", True)


def judge_report(data: bytes, tests: Sequence[str]) -> str:
    """Say why the report does not show every test as passed; empty if it does. Blocking: runs in a thread."""
    if len(data) > REPORT_BYTES:
        return f"its report has more than {REPORT_BYTES} bytes"
    cases = _Cases()
    parser = expat.ParserCreate()
    parser.StartElementHandler = cases.start
    parser.EndElementHandler = cases.end
    parser.StartDoctypeDeclHandler = cases.doctype
    try:
        _feed(parser, data)
    except _RefusedError as refused:
        return f"its report {refused}"
    except (expat.ExpatError, LookupError, ValueError) as error:  # the others: an encoding that there is not
        return f"its report cannot be read: {error}"
    missing = [test for test in tests if test not in cases.passed or test in cases.failed]
    return f"not passed: {', '.join(missing[:5])}" if missing else ""
