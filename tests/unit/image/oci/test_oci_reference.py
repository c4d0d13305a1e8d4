"""References and logins are read as other tools do."""

import json
from pathlib import Path

import pytest

from dutyfree.core.errors import Misuse
from dutyfree.image.oci.credential import Credential, look_up
from dutyfree.image.oci.reference import parse_reference


@pytest.mark.parametrize(
    ("text", "host", "repository", "tag"),
    [
        ("python", "docker.io", "library/python", "latest"),
        ("me/app:1", "docker.io", "me/app", "1"),
        ("localhost/app", "localhost", "app", "latest"),
        ("ghcr.io/a/b/c:x", "ghcr.io", "a/b/c", "x"),
        ("127.0.0.1:5000/a", "127.0.0.1:5000", "a", "latest"),
        ("[::1]:5000/a", "[::1]:5000", "a", "latest"),
    ],
)
def test_references_are_read_as_everybody_does(text: str, host: str, repository: str, tag: str):
    found = parse_reference(text)
    assert (found.host, found.repository, found.tag) == (host, repository, tag)


@pytest.mark.parametrize(
    "text", ["", "A", "a:", "a b", "a/../b", "host.x/", "a@sha256:12", "a:b:c", "x" * 600, "../a", "a//b"]
)
def test_what_is_no_reference_is_misuse(text: str):
    with pytest.raises(Misuse) as caught:
        parse_reference(text)
    assert caught.value.field == "reference"


def test_logins_of_others_are_found(tmp_path: Path):
    (tmp_path / "config.json").write_text(json.dumps({"auths": {"r.example": {"auth": "bWU6c2VjcmV0"}}}))
    found = look_up("r.example", {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)})
    assert found == Credential(user="me", password="secret")
    assert "secret" not in repr(found)
    assert look_up("other.example", {"DOCKER_CONFIG": str(tmp_path), "HOME": str(tmp_path)}) is None


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("python", "python"), ("python:latest", "python"), ("python:3.12", "python-3.12"), ("a.b/c/repo:A", "repo-a"),
        (f"repo:a@sha256:{'0f' * 32}", "repo-0f0f0f0f0f0f"),
    ],
)  # fmt: skip
def test_images_of_one_repository_get_names_of_their_own(text: str, name: str):
    assert parse_reference(text).short == name
