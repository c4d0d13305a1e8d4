"""Content keys: the same for the same state, another for anything that could change it."""

from dataclasses import replace
from pathlib import Path

import pytest

from dutyfree import Commands, Files, Misuse, Repository, Spec
from dutyfree.warm.recipe import keys, recipe, tree_digest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
BUILD = Commands(commands=["make", ["make", "install"]], env={"A": "1"}, cwd="/repo")
CLONE = Repository(url="https://example.org/x.git", commit=COMMIT)


def key(*stages, root="root"):
    return keys(root, [recipe(stage) for stage in stages])[-1]


def test_the_same_recipe_after_the_same_parent_has_the_same_key():
    assert key(CLONE, BUILD) == key(replace(CLONE), replace(BUILD))


@pytest.mark.parametrize(
    "other",
    [
        replace(BUILD, commands=["make"]),
        replace(BUILD, commands=["make", "make install"]),
        replace(BUILD, env={"A": "2"}),
        replace(BUILD, cwd="/"),
        replace(BUILD, user="agent"),
        replace(BUILD, network="host"),
        replace(CLONE, commit=COMMIT[::-1]),
        replace(CLONE, path="/src"),
        replace(CLONE, depth=1),
        replace(CLONE, fetch="inside"),
    ],
)
def test_whatever_could_change_the_outcome_changes_the_key(other):
    assert key(other) != key(BUILD if isinstance(other, Commands) else CLONE)


def test_names_and_deadlines_do_not_change_the_key():
    assert key(replace(BUILD, name="other", timeout_s=1.0)) == key(BUILD)
    assert key(replace(CLONE, name="other", timeout_s=None)) == key(CLONE)


def test_a_key_depends_on_everything_before_it():
    assert key(CLONE, BUILD) != key(BUILD)
    assert key(BUILD, root="another") != key(BUILD)
    assert key(CLONE, BUILD) != key(BUILD, CLONE)


def test_local_files_count_by_content_mode_name_and_link(tmp_path):
    tree = tmp_path / "tree"
    (tree / "sub").mkdir(parents=True)
    (tree / "sub" / "file").write_bytes(b"1")
    (tree / "link").symlink_to("sub/file")
    seen = [tree_digest(tree)]
    (tree / "sub" / "file").write_bytes(b"2")
    seen.append(tree_digest(tree))
    (tree / "sub" / "file").chmod(0o755)
    seen.append(tree_digest(tree))
    (tree / "link").unlink()
    (tree / "link").symlink_to("elsewhere")
    seen.append(tree_digest(tree))
    (tree / "sub" / "file").rename(tree / "sub" / "renamed")
    seen.append(tree_digest(tree))
    (tree / "empty").mkdir()
    seen.append(tree_digest(tree))
    assert len(set(seen)) == len(seen)
    assert tree_digest(tree) == seen[-1]


def test_bytes_count_with_their_mode(tmp_path):
    (tmp_path / "x").write_bytes(b"text")
    given = Files(files={"/x": b"text"})
    assert key(given) == key(Files(files={"/x": b"text"}))
    assert key(given) != key(Files(files={"/x": b"text"}, mode=0o755))
    assert key(given) != key(Files(files={"/x": tmp_path / "x"}))


def test_a_local_tree_that_is_not_there_is_misuse(tmp_path):
    with pytest.raises(Misuse, match="files"):
        recipe(Files(files={"/x": tmp_path / "nothing"}))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Commands(commands=[]), "commands"),
        (lambda: Commands(commands="make"), "commands"),
        (lambda: Commands(commands=["make", 1]), "commands"),
        (lambda: Commands(commands=["make"], cwd="here"), "cwd"),
        (lambda: Commands(commands=["make"], network="some"), "network"),
        (lambda: Commands(commands=["make"], timeout_s=0), "timeout_s"),
        (lambda: Repository(url="--upload-pack=x", commit=COMMIT), "url"),
        (lambda: Repository(url="x", commit="main"), "commit"),
        (lambda: Repository(url="x", commit=COMMIT, depth=0), "depth"),
        (lambda: Repository(url="x", commit=COMMIT, fetch="somewhere"), "fetch"),
        (lambda: Files(files={}), "files"),
        (lambda: Files(files={"relative": b""}), "files"),
        (lambda: Files(files={"/x": "text"}), "files"),
        (lambda: Files(files={"/x": Path("y")}, mode=0o10000), "mode"),
        (lambda: Spec(stages=["make"]), "stages"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(make, field):
    with pytest.raises(Misuse) as caught:
        make()
    assert caught.value.field == field
