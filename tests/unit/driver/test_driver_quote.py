import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dutyfree.core.errors import Misuse
from dutyfree.driver.exec_command import command_text, ending_of, is_refusal, script_text

words = st.binary(max_size=20).filter(lambda word: b"\0" not in word and not word.endswith(b"\n"))


@settings(max_examples=40, deadline=None)
@given(st.lists(words, min_size=1, max_size=4))
def test_words_of_any_bytes_arrive_as_they_are(argv):
    text = command_text([b"printf", b"%s\\0", *argv])
    out = subprocess.run(text, capture_output=True, check=True).stdout
    assert out == b"".join(word + b"\0" for word in argv)


def test_a_script_that_is_not_utf8_still_runs():
    out = subprocess.run(["sh", "-c", script_text(b"printf %s '\xff\xfe'")], capture_output=True, check=True).stdout
    assert out == b"\xff\xfe"


def test_a_newline_at_the_end_of_what_is_not_utf8_is_refused():
    with pytest.raises(Misuse):
        command_text([b"echo", b"\xff\n"])


@pytest.mark.parametrize(
    ("said", "code"),
    [
        ('OCI runtime exec failed: exec failed: exec: "x": executable file not found in $PATH: unknown', 127),
        ('Error: /usr/sbin/runc: exec failed: exec: "/x": permission denied: OCI permission denied', 126),
        ('exec failed: exec: "/x": no such file or directory', 127),
    ],
)
def test_a_runtimes_refusal_is_an_ordinary_ending(said, code):
    assert is_refusal(said)
    assert ending_of(said, cwd=None, user=None, sandbox="s")[0] == code


@pytest.mark.parametrize(
    ("said", "field"),
    [
        ('OCI runtime exec failed: chdir to cwd ("/no") set in config.json failed: no such file or directory', "cwd"),
        ("unable to find user nobody-here: no matching entries in passwd file", "user"),
        ("exec failed: argument list too long", "command"),
    ],
)
def test_what_the_caller_got_wrong_is_misuse_naming_the_field(said, field):
    with pytest.raises(Misuse) as caught:
        ending_of(said, cwd="/no", user="nobody-here", sandbox="s")
    assert caught.value.field == field


def test_a_programs_own_words_are_no_refusal():
    assert not is_refusal("Error: something else")
    assert not is_refusal("")
