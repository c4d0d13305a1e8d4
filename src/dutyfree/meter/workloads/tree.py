"""`Tree`: a local checkout, read once, from which inspection actions and their expected answers are drawn.

The harness works out what `grep`, `sed`, `wc` and an AST search must print, so that a sandbox whose files or programs
differ is caught. Python sources only.
"""

from __future__ import annotations

import ast
import re
from functools import cached_property
from pathlib import Path

from dutyfree.meter.action import Action, Check

PYTHON = "/usr/bin/python3"
"""The same program on every substrate; the machine's own, not a virtual environment's."""

AST_SEARCH = """\
import ast, sys
tree = ast.parse(open(sys.argv[1]).read())
for node in ast.walk(tree):
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        print(node.lineno, node.name)
"""

_EXCERPT_LINES = 60


class Tree:
    """The Python files of a checkout, and questions an agent asks of them."""

    def __init__(self, root: Path) -> None:
        self.files = sorted(
            str(path.relative_to(root)) for path in root.rglob("*.py") if ".git" not in path.relative_to(root).parts
        )
        self._text = {name: (root / name).read_bytes() for name in self.files}
        self.sources = [name for name in self.files if len(self._text[name].splitlines()) >= _EXCERPT_LINES]

    @cached_property
    def terms(self) -> list[str]:
        """Names defined in the sources: what an agent greps for."""
        names = {name for file in self.sources for _, name in self._definitions(file)}
        return sorted(name for name in names if len(name) > 4 and name.isascii())

    def find(self) -> Action:
        """Count the Python files."""
        answer = b"%d\n" % len(self.files)
        return Action(
            kind="inspect", command="find . -name '*.py' -not -path './.git/*' | wc -l", check=Check(equals=answer)
        )

    def grep(self, number: int) -> Action:
        """Search all files for a name."""
        term = self.terms[number * 7 % len(self.terms)]
        pattern = re.compile(rb"\b%s\b" % term.encode(), re.ASCII)
        count = sum(1 for text in self._text.values() for line in text.splitlines() if pattern.search(line))
        return Action(
            kind="inspect",
            command=f"grep -rnw --include='*.py' {term} . | wc -l",
            check=Check(equals=b"%d\n" % count),
        )

    def read(self, number: int) -> Action:
        """Read a window of a file, as an agent scrolls through it."""
        name = self._source(number)
        lines = self._text[name].splitlines(keepends=True)
        first = number * 40 % max(1, len(lines) - _EXCERPT_LINES)
        window = b"".join(lines[first : first + _EXCERPT_LINES])
        return Action(
            kind="inspect", command=f"sed -n '{first + 1},{first + _EXCERPT_LINES}p' {name}", check=Check(equals=window)
        )

    def outline(self, number: int) -> Action:
        """The definitions in a file, by regular expression."""
        name = self._source(number + 1)
        hits = [
            b"%d:%s\n" % (at, line)
            for at, line in enumerate(self._text[name].splitlines(), start=1)
            if line.startswith((b"def ", b"class "))
        ]
        check = Check(equals=b"".join(hits)) if hits else Check(exit_code=1)
        return Action(kind="inspect", command=f"grep -nE '^(def|class) ' {name}", check=check)

    def tail(self, number: int) -> Action:
        """The end of a file."""
        name = self._source(number + 2)
        lines = self._text[name].splitlines(keepends=True)
        return Action(kind="inspect", command=f"tail -n 20 {name}", check=Check(equals=b"".join(lines[-20:])))

    def count(self, number: int) -> Action:
        """The length of a file."""
        name = self._source(number + 3)
        return Action(kind="inspect", command=f"wc -c < {name}", check=Check(equals=b"%d\n" % len(self._text[name])))

    def search_syntax(self, number: int) -> Action:
        """The definitions in a file, by parsing it."""
        name = self._source(number)
        answer = "".join(f"{line} {found}\n" for line, found in self._definitions(name))
        return Action(kind="command", command=(PYTHON, "-c", AST_SEARCH, name), check=Check(equals=answer.encode()))

    def _source(self, number: int) -> str:
        return self.sources[number % len(self.sources)]

    def _definitions(self, name: str) -> list[tuple[int, str]]:
        nodes = ast.walk(ast.parse(self._text[name]))
        return [(node.lineno, node.name) for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)]
