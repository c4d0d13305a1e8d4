"""What an engine says in its refusals, as people read it."""

import json

import pytest

from dutyfree.substrates.container.engine_http import Reply


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (b'{"message": "no such\\n  image"}', "no such image"),
        (b'{"cause": "in use", "message": ""}', "in use"),
        (b"  plain\nwords ", "plain words"),
        (b"[1]", "[1]"),
    ],
)
def test_a_refusal_is_one_line(body, words):
    assert Reply(status=500, body=body).message == words


def test_a_path_of_any_length_leaves_both_ends_of_a_message():
    message = "cannot remove /" + "d/" * 20_000 + ": too many open files"
    told = Reply(status=500, body=json.dumps({"message": message}).encode()).message
    assert len(told) < 1000
    assert told.startswith("cannot remove /d/")
    assert told.endswith(": too many open files")
