"""Start states written in TOML or JSON."""

import json
from pathlib import Path

import pytest

from dutyfree import Commands, Files, Misuse, Repository
from dutyfree.warm import load

COMMIT = "0123456789abcdef0123456789abcdef01234567"
TEXT = f"""
image = "bench"
cwd = "/repo"
limits = {{ memory_bytes = 1073741824 }}

[[stage]]
repository = "https://example.org/x.git"
commit = "{COMMIT}"

[[stage]]
name = "dependencies"
commands = ["make deps", ["make", "install"]]
cwd = "/repo"
network = "host"
timeout_s = 5

[[stage]]
files = {{ "/etc/motd" = "hello" }}
copy = {{ "/data" = "data" }}
"""


def declared(tmp_path: Path, text: str, name: str = "start.toml") -> Path:
    path = tmp_path / name
    path.write_text(text)
    return path


def test_a_declaration_says_what_python_says(tmp_path):
    spec = load(declared(tmp_path, TEXT))
    assert (spec.image, spec.cwd, spec.limits.memory_bytes) == ("bench", "/repo", 1 << 30)
    assert spec.stages == (
        Repository(url="https://example.org/x.git", commit=COMMIT),
        Commands(
            commands=["make deps", ["make", "install"]], cwd="/repo", network="host", timeout_s=5, name="dependencies"
        ),
        Files(files={"/etc/motd": b"hello", "/data": tmp_path / "data"}),
    )


def test_json_says_the_same(tmp_path):
    content = {"image": "host", "stage": [{"commands": ["true"], "env": {"A": "1"}}]}
    spec = load(declared(tmp_path, json.dumps(content), "start.json"))
    assert spec.stages == (Commands(commands=["true"], env={"A": "1"}),)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("image = ", "is not TOML"),
        ("colour = 1", "'colour' is not known here"),
        ("stage = 1", "must be a list"),
        ("[[stage]]\nname = 'x'", "stage 1: must say one of"),
        ("[[stage]]\ncommands = ['x']\nrepository = 'y'", "stage 1: must say one of"),
        ("[[stage]]\ncommands = ['x']\ncolour = 1", "stage 1.*'colour' is not known here"),
        ("[[stage]]\nrepository = 'x'", "stage 1: missing.*'commit'"),
        ("[[stage]]\ncommands = []", "stage 1: commands: must be"),
        ("[[stage]]\nfiles = { '/x' = 1 }", "stage 1.*must be a string"),
        ("limits = { speed = 1 }", "limits.*'speed' is not known here"),
    ],
)
def test_a_mistake_names_the_file_the_stage_and_the_field(tmp_path, text, says):
    with pytest.raises(Misuse, match=says) as caught:
        load(declared(tmp_path, text))
    assert "start.toml" in str(caught.value)


def test_a_declaration_that_is_not_there_is_misuse(tmp_path):
    with pytest.raises(Misuse, match="cannot be read"):
        load(tmp_path / "nothing.toml")
