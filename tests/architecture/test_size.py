"""Files stay small enough to be read."""

from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LONGEST = 500
FOLDERS = ("src", "tests", "benchmarks", "examples", "native")
SOURCES = sorted(
    path
    for folder in FOLDERS
    for pattern in ("*.py", "*.c", "*.h")
    for path in (REPOSITORY / folder).rglob(pattern)
    if not any(part.startswith("build") for part in path.relative_to(REPOSITORY).parts)
)


def test_no_file_is_longer_than_five_hundred_lines():
    lengths = {str(path.relative_to(REPOSITORY)): len(path.read_text().splitlines()) for path in SOURCES}
    assert len(lengths) > 50
    assert {path: lines for path, lines in lengths.items() if lines > LONGEST} == {}
