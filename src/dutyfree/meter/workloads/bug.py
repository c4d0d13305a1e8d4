"""The bug that T2 repairs: ours, put into attrs' `asdict`, with a test that shows it and the patch that fixes it.

`asdict(filter=...)` shall leave attributes out at every depth; with the bug it forgets the filter inside lists.
"""

from __future__ import annotations

SOURCE_PATH = "src/attr/_funcs.py"
TEST_PATH = "tests/test_nested_filter.py"
SUBJECT = "Simplify how asdict walks collections"

BUGGY_COMMIT = "c4eeeb761817d50426720f265ec915405c7e60b4"
"""Follows from the source distribution, the bug, and fixed names and dates."""

_RIGHT = """\
                    _asdict_anything(
                        i,
                        is_key=False,
                        filter=filter,
"""
_WRONG = _RIGHT.replace("filter=filter", "filter=None")

TEST = '''\
"""Filters given to asdict hold at every depth."""

import attr


@attr.s
class Leaf:
    name = attr.ib()
    secret = attr.ib()


@attr.s
class Branch:
    leaves = attr.ib()


def drop_secret(attribute, value):
    return attribute.name != "secret"


def test_filter_applies_inside_lists():
    tree = Branch([Leaf("a", 1), Leaf("b", 2)])
    assert {"leaves": [{"name": "a"}, {"name": "b"}]} == attr.asdict(
        tree, filter=drop_secret
    )


def test_filter_applies_to_direct_children():
    assert {"leaves": {"name": "a"}} == attr.asdict(
        Branch(Leaf("a", 1)), filter=drop_secret
    )
'''

REPRODUCE = (
    'import attr; C = attr.make_class("C", ["x", "y"]); '
    'out = attr.asdict(C([C(1, 2)], 3), filter=lambda a, v: a.name != "y"); '
    'raise SystemExit(out != {"x": [{"x": 1}]})'
)
"""Python without single quotes; exits with 1 as long as the bug is there."""

PATCH = b"""\
diff --git a/src/attr/_funcs.py b/src/attr/_funcs.py
--- a/src/attr/_funcs.py
+++ b/src/attr/_funcs.py
@@ -86,7 +86,7 @@
                     _asdict_anything(
                         i,
                         is_key=False,
-                        filter=None,
+                        filter=filter,
                         dict_factory=dict_factory,
                         retain_collection_types=retain_collection_types,
                         value_serializer=value_serializer,
"""
"""Undoes the bug, and nothing else."""


def inject(source: str) -> str:
    """The source with the bug in it."""
    if source.count(_RIGHT) != 1:
        raise ValueError(f"{SOURCE_PATH} is not the file this bug was made for")
    return source.replace(_RIGHT, _WRONG)
