"""`verify` on real sandboxes: what is taken over, what is refused, and what a failure of the machinery becomes."""

import asyncio

import pytest

import dutyfree

SPEC = dutyfree.Spec()
PASS = dutyfree.Check(command=["true"])


def play(work, **options):
    """Let `work` act in an agent's sandbox, then verify it."""

    async def run():
        async with dutyfree.connect("native") as substrate, substrate.create(SPEC) as box:
            await work(box)
            return await dutyfree.verify(substrate, SPEC, box, **options)

    return asyncio.run(run())


async def nothing(box):
    pass


def cat(path):
    return dutyfree.Check(command=["cat", path])


def test_allowed_files_arrive_with_their_modes_and_others_do_not():
    async def work(box):
        await box.write("/task/src/a.py", b"a")
        await box.write("/task/src/run.sh", b"#!/bin/sh\necho ran", mode=0o755)
        await box.write("/task/other", b"other")

    found = play(
        work, allow=["/task/src/**"], checks=[dutyfree.Check(command="cat /task/src/a.py; /task/src/run.sh; ls /task")]
    )
    assert found.taken == ("/task/src/a.py", "/task/src/run.sh")
    assert found.results[0].outcome.stdout == b"aran\nsrc\n"


def test_a_file_of_the_start_state_that_was_removed_is_removed():
    async def work(box):
        await box.remove("/etc/hosts")

    found = play(work, allow=["/etc/hosts"], checks=[dutyfree.Check(command="test ! -e /etc/hosts")])
    assert found.removed == ("/etc/hosts",)
    assert found.passed


def test_links_devices_and_steering_names_are_refused_and_named():
    async def work(box):
        await box.run(
            "mkdir -p /task/src && cd /task/src && ln -s /etc/passwd link && mkfifo fifo && touch conftest.py ok.py"
        )

    found = play(work, allow=["/task/src/**"], checks=[PASS])
    assert found.taken == ("/task/src/ok.py",)
    assert sorted(found.refused) == [
        "/task/src/conftest.py: steers how tests are run",
        "/task/src/fifo: is a other",
        "/task/src/link: is a symlink",
    ]


def test_a_linked_directory_is_not_walked():
    async def work(box):
        await box.run("mkdir -p /task && ln -s /etc /task/src")

    assert play(work, allow=["/task/src/**"], checks=[PASS]).taken == ()


def test_hidden_files_win_over_what_the_agent_left():
    async def work(box):
        await box.write("/task/tests/t", b"mine")

    found = play(work, allow=["/task/**"], hidden={"/task/tests/t": b"yours"}, checks=[cat("/task/tests/t")])
    assert found.results[0].outcome.stdout == b"yours"
    assert found.refused == ("/task/tests/t: is a hidden file's place",)


def test_a_check_that_rewrites_the_hidden_files_does_not_pass():
    check = dutyfree.Check(command="chmod 666 /task/t; echo easy >/task/t")
    found = play(nothing, allow=["/task/**"], hidden={"/task/t": b"hard"}, checks=[check])
    assert not found.passed
    assert found.results[0].reason == "/task/t was changed while it judged"


@pytest.mark.parametrize(
    ("command", "reason"),
    [
        ("exit 3", "exit code 3"),
        ("kill -9 $$", "ended by signal"),
        ("sleep 100", "ended by timeout"),
    ],
)
def test_every_other_ending_is_a_check_that_did_not_pass(command, reason):
    found = play(nothing, allow=["/task/**"], checks=[dutyfree.Check(command=command, timeout_s=1), PASS])
    assert [result.reason for result in found.results] == [reason, ""]
    assert not found.passed


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('<t><testcase name="one"/><testcase name="two"/></t>', ""),
        ('<t><testcase name="one"/></t>', "not passed: two"),
        ('<t><testcase name="one"/><testcase name="two"><failure/></testcase></t>', "not passed: two"),
        ('<t><testcase name="one"/><testcase name="two"><skipped/></testcase></t>', "not passed: two"),
        ("<!DOCTYPE t><t/>", "its report defines entities"),
        ("<t", "its report cannot be read: unclosed token: line 1, column 0"),
    ],
)
def test_a_report_must_show_every_named_test_as_passed(text, reason):
    check = dutyfree.Check(command=["sh", "-c", 'printf %s "$1" >"$2"', "sh", text, "{report}"], tests=["one", "two"])
    assert play(nothing, allow=["/task/**"], checks=[check]).results[0].reason == reason


def test_a_failure_of_the_machinery_is_raised_and_no_reward():
    async def work(box):
        await box.destroy()

    with pytest.raises(dutyfree.DutyfreeError):
        play(work, allow=["/task/**"], checks=[PASS])


def test_more_than_expected_is_refused():
    async def work(box):
        await box.write("/task/a", b"x" * 2000)
        await box.write("/task/b", b"x")

    with pytest.raises(dutyfree.Misuse, match="1000 bytes"):
        play(work, allow=["/task/**"], checks=[PASS], max_bytes=1000)
    with pytest.raises(dutyfree.Misuse, match="1 files"):
        play(work, allow=["/task/**"], checks=[PASS], max_files=1)


def test_arguments_that_make_no_sense_are_refused():
    with pytest.raises(dutyfree.Misuse, match="checks"):
        play(nothing, allow=["/task/**"], checks=[])
    with pytest.raises(dutyfree.Misuse, match="report"):
        dutyfree.Check(command=["true"], tests=["one"])
    with pytest.raises(dutyfree.Misuse, match="hidden"):
        play(nothing, allow=["/task/**"], checks=[PASS], hidden={"relative": b""})
