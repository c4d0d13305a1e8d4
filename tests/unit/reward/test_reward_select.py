"""The allow-list: what matches, what steers, where to look."""

import pytest

import dutyfree
from dutyfree.reward.select import AllowList, HiddenPlaces


@pytest.mark.parametrize(
    ("pattern", "path", "allowed"),
    [
        ("/repo/src/**", "/repo/src/a/b.py", True),
        ("/repo/src/**", "/repo/src", False),
        ("/repo/src/**", "/repo/srcs/a.py", False),
        ("/repo/**/*.py", "/repo/a.py", True),
        ("/repo/**/*.py", "/repo/x/y/a.py", True),
        ("/repo/**/*.py", "/repo/x/a.pyc", False),
        ("/repo/*.py", "/repo/x/a.py", False),
        ("/repo/a?.py", "/repo/ab.py", True),
        ("/repo/a.b", "/repo/axb", False),
        ("/repo/src", "/repo/src", True),
        ("/repo/src", "/repo/src/a/b.py", True),
        ("/repo/src/", "/repo/src/a/b.py", True),
        ("/repo/./src", "/repo/src/a", True),
        ("/repo/src", "/repo/srcs", False),
        ("/", "/repo/a", True),
        ("/repo/a.py", "/repo/a.py\n", False),
    ],
)
def test_a_pattern_matches_whole_paths(pattern, path, allowed):
    assert AllowList([pattern]).allows(path) is allowed


def test_names_that_steer_tests_must_be_listed_literally():
    assert AllowList(["/repo/**"]).steers("/repo/tests/conftest.py")
    assert AllowList(["/repo/**"]).steers("/repo/.git/hooks/pre-commit")
    assert AllowList(["/repo/**"]).steers("/repo/x.pth")
    assert not AllowList(["/repo/**"]).steers("/repo/src/a.py")
    assert not AllowList(["/repo/**", "/repo/setup.cfg"]).steers("/repo/setup.cfg")


@pytest.mark.parametrize(
    "name",
    [
        "GNUmakefile", "makefile", "pytest.toml", ".pytest.toml", "CMakeLists.txt", "Cargo.toml", "go.mod", "pom.xml", "build.gradle.kts",
        "Rakefile", ".rspec", "phpunit.xml.dist", "tsconfig.json", "node_modules/.bin/jest", "x.egg-info/entry_points.txt", "a.so", "T.class",
        "__pycache__/x.cpython-312.pyc", ".cargo/config.toml", "vitest.workspace.ts",
    ],
)  # fmt: skip
def test_names_that_runners_and_tools_read_unasked_steer(name):
    assert AllowList(["/repo/**"]).steers(f"/repo/x/{name}")


def test_what_the_caller_spelled_out_is_meant():
    assert not AllowList(["/repo/vendor/lib/**"]).steers("/repo/vendor/lib/a.py")
    assert AllowList(["/repo/vendor/lib/**"]).steers("/repo/vendor/lib/conftest.py")
    assert not AllowList(["/repo/.git"]).steers("/repo/.git/hooks/pre-commit")
    assert AllowList(["/repo/**", "/repo/.git/hooks/x"]).opens("/repo/.git")
    assert not AllowList(["/repo/**"]).opens("/repo/.git")


def test_the_places_around_hidden_files_are_theirs():
    places = HiddenPlaces(["/repo/tests/t.py", "/repo/web/a.spec.ts"])
    for taken in (
        "/repo/tests/t.py",
        "/repo/tests/t.py/x",
        "/repo/tests",
        "/repo",
        "/repo/tests/t",
        "/repo/web/a.spec.js",
    ):
        assert places.reason(taken)
    for free in ("/repo/tests/u.py", "/repo/test", "/repo/web/a.ts", "/repo/t.py"):
        assert not places.reason(free)
    assert not places.reason("/repo/tests", directory=True)


def test_only_what_lies_below_the_fixed_part_is_looked_at():
    assert AllowList(["/repo/src/**", "/repo/src/x/*.py", "/a/b"]).tops() == ["/a/b", "/repo/src"]


@pytest.mark.parametrize("allow", ["/repo/**", ["relative"], ["/repo/../etc/**"], ["/a\0b"], [""]])
def test_a_list_that_makes_no_sense_is_refused(allow):
    with pytest.raises(dutyfree.Misuse):
        AllowList(allow)
