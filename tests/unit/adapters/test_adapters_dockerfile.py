"""A Dockerfile becomes an image and stages, or is refused with its line."""

from __future__ import annotations

import pytest

from dutyfree.adapters.dockerfile import load
from dutyfree.core.errors import DutyfreeError
from dutyfree.core.stage import Commands, Files

WHOLE = """# syntax=docker/dockerfile:1
ARG BASE=bench
FROM ${BASE} AS only
LABEL who=cares
ENV A=1 B="two words" C=$A-${MISSING:-none}
ENV OLD style
ARG VERSION=3
WORKDIR /app
COPY a.txt b.txt sub/
COPY tree .
COPY ["a.txt", "/etc/a b"]
# between
RUN echo one && \\
    # inside
    echo "$A"
USER nobody
RUN ["true", "x"]
CMD ["sleep", "1"]
"""


@pytest.fixture
def place(tmp_path):
    for name in ("a.txt", "b.txt", "tree/deep/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    (tmp_path / "Dockerfile").write_text(WHOLE)
    return tmp_path


def test_every_instruction_becomes_what_it_means(place) -> None:
    spec = load(place / "Dockerfile", network="host")
    assert (spec.image, spec.cwd, spec.user) == ("bench", "/app", "nobody")
    assert spec.env == {"A": "1", "B": "two words", "C": "-none", "OLD": "style"}
    workdir, two, tree, named, shell, direct = spec.stages
    assert workdir == Commands(commands=[["mkdir", "-p", "--", "/app"]], name="WORKDIR")
    assert isinstance(two, Files)
    assert set(two.files) == {"/app/sub/a.txt", "/app/sub/b.txt"}
    assert dict(tree.files) == {"/app": place / "tree"}
    assert set(named.files) == {"/etc/a b"}
    assert shell.commands[0][:2] == ("/bin/sh", "-c")
    assert shell.commands[0][2].split() == ["echo", "one", "&&", "echo", '"$A"']
    assert (shell.user, shell.cwd, shell.network, shell.env["VERSION"]) == (None, "/app", "host", "3")
    assert (direct.commands, direct.user) == ((("true", "x"),), "nobody")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("RUN true", "comes before FROM"),
        ("", "no FROM"),
        ("FROM a\nFROM b", "Dockerfile:2: a second FROM"),
        ("FROM --platform=x a", "FROM --platform=x a is not offered"),
        ("FROM a\nRUN --mount=type=cache,target=/c true", "options and here-documents"),
        ("FROM a\nRUN <<EOF\ntrue\nEOF", "here-documents"),
        ("FROM a\nCOPY --from=b /x /y", "options of COPY"),
        ("FROM a\nCOPY none.txt /y", "none.txt is not in"),
        ("FROM a\nCOPY ../secret /y", "secret"),
        ("FROM a\nCOPY link /y", "lies outside"),
        ("FROM a\nCOPY a.txt", "a source and a target"),
        ("FROM a\nADD https://example.org/x /y", "ADD of URLs"),
        ('FROM a\nSHELL ["/bin/zsh"]', "SHELL is not offered"),
        ("FROM a\nONBUILD RUN true", "ONBUILD is not offered"),
        ("FROM a\nINSTRUCTION", "INSTRUCTION is not offered"),
    ],
)  # fmt: skip
def test_what_it_cannot_mean_is_refused_with_its_line(place, text: str, why: str) -> None:
    (place.parent / "secret").write_text("s")
    (place / "link").symlink_to(place.parent / "secret")
    (place / "Dockerfile").write_text(text)
    with pytest.raises(DutyfreeError, match=why):
        load(place / "Dockerfile")
