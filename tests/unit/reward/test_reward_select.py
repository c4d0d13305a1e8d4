"""The allow-list: what matches, what steers, where to look."""

import pytest

import dutyfree
from dutyfree.reward.select import AllowList


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


def test_only_what_lies_below_the_fixed_part_is_looked_at():
    assert AllowList(["/repo/src/**", "/repo/src/x/*.py", "/a/b"]).tops() == ["/a/b", "/repo/src"]


@pytest.mark.parametrize("allow", ["/repo/**", ["relative"], ["/repo/../etc/**"], ["/a\0b"], [""]])
def test_a_list_that_makes_no_sense_is_refused(allow):
    with pytest.raises(dutyfree.Misuse):
        AllowList(allow)
