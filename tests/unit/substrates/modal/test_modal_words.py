"""Words of an exec call, said to a shell of this machine."""

import subprocess

import pytest

from dutyfree.driver.exec_call import ExecCall
from dutyfree.substrates.modal.words import MOST, NO_PLACE, spoken

TOKEN = "0123abcd"


def said(wanted: ExecCall, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    words, before = spoken(wanted, TOKEN)
    assert sum(map(len, words)) < 1 << 16
    return subprocess.run(words, input=before + stdin, capture_output=True, check=False)


@pytest.mark.parametrize("size", [1, 2 * MOST])
def test_words_arrive_as_they_are_whatever_their_length(size: int):
    words = ["$HOME", "*", "a b", "", "'", "\n", "é", "x" * size]
    outcome = said(ExecCall(argv=["printf", "%s\\0", *words]))
    assert outcome.stdout == b"".join(word.encode() + b"\0" for word in words)


@pytest.mark.parametrize("size", [1, 2 * MOST])
def test_the_input_is_the_commands_own(size: int):
    script = 'printf %s "${#1}"; cat'
    outcome = said(ExecCall(argv=["sh", "-c", script, "sh", "x" * size]), stdin=b"\xff\0input")
    assert outcome.stdout == str(size).encode() + b"\xff\0input"


def test_a_command_starts_where_it_is_told():
    assert said(ExecCall(argv=["pwd"], cwd="/usr")).stdout == b"/usr\n"


def test_a_place_that_is_not_there_is_told_by_the_token():
    outcome = said(ExecCall(argv=["true"], cwd="/no/such/place"))
    assert (outcome.returncode, outcome.stderr) == (NO_PLACE, TOKEN.encode())


@pytest.mark.parametrize(("program", "code"), [("no-such-program-anywhere", 127), ("/usr", 126)])
def test_a_program_that_cannot_run_ends_as_a_shell_says(program: str, code: int):
    assert said(ExecCall(argv=[program])).returncode == code
