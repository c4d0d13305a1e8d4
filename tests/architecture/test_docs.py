"""Pages for people: their links lead somewhere, their Python compiles, the index names every page."""

import ast
import re
import textwrap
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
DOCS = REPOSITORY / "docs"
PAGES = sorted([*REPOSITORY.glob("*.md"), *DOCS.rglob("*.md"), *(REPOSITORY / "changelog.d").glob("*.md")])
LINK = re.compile(r"\]\(\s*<?([^)>\s]+)>?\s*\)")
FENCE = re.compile(r"^([ ]*)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
ELSEWHERE = ("http://", "https://", "mailto:")


def without_code(text: str) -> str:
    return re.sub(r"`[^`\n]+`", "", FENCE.sub("", text))


def anchors(page: Path) -> set[str]:
    """The names that a forge gives to the headings of a page."""
    titles = re.findall(r"^#+ (.+)$", FENCE.sub("", page.read_text()), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


def dead_links(page: Path, text: str) -> list[str]:
    found = []
    place = REPOSITORY if page.parent.name == "changelog.d" else page.parent  # fragments move into CHANGELOG.md
    for link in LINK.findall(without_code(text)):
        path, _, anchor = link.partition("#")
        target = (place / path).resolve() if path else page
        if link.startswith(ELSEWHERE):
            continue
        if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
            found.append(link)
    return found


def python_blocks(text: str) -> list[str]:
    return [textwrap.dedent(code) for _, language, code in FENCE.findall(text) if language == "python"]


def broken_code(text: str) -> list[str]:
    """Blocks that are no Python. A block may use `await` as if it stood in a coroutine."""
    found = []
    for code in python_blocks(text):
        try:
            compile(code, "page", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        except SyntaxError as error:
            found.append(f"{error}: {code}")
    return found


def test_every_relative_link_of_a_page_leads_somewhere():
    assert len(PAGES) > 50
    assert {str(page): dead for page in PAGES if (dead := dead_links(page, page.read_text()))} == {}


def test_every_python_block_of_a_page_compiles():
    assert sum(len(python_blocks(page.read_text())) for page in PAGES) > 10
    assert {str(page): broken for page in PAGES if (broken := broken_code(page.read_text()))} == {}


def test_a_dead_link_and_broken_code_are_found():
    text = "[a](nowhere.md) [b](README.md#no-such-title) [c](README.md)\n```python\nawait x(\n```\n"
    assert dead_links(REPOSITORY / "README.md", text) == ["nowhere.md", "README.md#no-such-title"]
    assert len(broken_code(text)) == 1


def test_the_index_names_every_page():
    index = DOCS / "README.md"
    named = {(DOCS / link.partition("#")[0]).resolve() for link in LINK.findall(index.read_text())}
    pages = {page for page in DOCS.rglob("*.md") if page != index and page.parent.name != "decisions"}
    assert pages - named == set()
    assert (DOCS / "decisions") in named


def test_the_readme_fits_a_screen_or_two():
    lines = (REPOSITORY / "README.md").read_text().splitlines()
    assert len(lines) < 80
    assert max(map(len, lines)) < 120
