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
        "/task/src/fifo: is neither a file nor a directory",
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


@pytest.mark.parametrize(
    ("work", "bounds", "reason"),
    [
        ("head -c 2000 /dev/zero >a", {"max_bytes": 1000}, "more than 1000 bytes"),
        ("truncate -s 1T a", {}, "more than 67108864 bytes"),
        ("touch a b", {"max_files": 1}, "more than 1 files"),
        ("python3 -c 'import os; [os.symlink(\"x\", str(n)) for n in range(100_001)]'", {}, "more than 100000 entries"),
    ],
)
def test_a_solution_of_more_than_expected_does_not_pass_and_says_why(work, bounds, reason):
    async def leave(box):
        assert (await box.run(f"mkdir -p /task; cd /task; {work}")).ok

    found = play(leave, allow=["/task/**"], checks=[PASS, PASS], **bounds)
    assert not found.passed
    assert reason in found.reason
    assert [result.outcome.ending for result in found.results] == ["cancelled", "cancelled"]
    assert found.taken == ()


def test_a_start_state_of_more_than_expected_is_the_callers_mistake():
    with pytest.raises(dutyfree.Misuse, match="start state alone"):
        play(nothing, allow=["/etc"], checks=[PASS], max_files=1)


def test_a_pattern_without_wildcards_names_a_directory_with_all_below_it():
    async def work(box):
        await box.write("/task/src/pkg/a.py", b"a")

    assert play(work, allow=["/task/src/"], checks=[PASS]).taken == ("/task/src/pkg/a.py",)


def test_patterns_that_match_nothing_are_named():
    async def work(box):
        await box.write("/task/src/a.py", b"a")

    found = play(work, allow=["/task/src", "/task/scr", "/tsak/**/*.py", "/etc/hosts"], checks=[PASS])
    assert found.unmatched == ("/task/scr", "/tsak/**/*.py")


def from_state(start, work, **options):
    """Verify what `work` makes of the state that `start` left."""

    async def run():
        async with dutyfree.connect("native") as substrate:
            async with substrate.create(SPEC) as box:
                assert (await box.run(start)).ok
                saved = await box.snapshot()
            spec = dutyfree.Spec(image=saved.image)
            async with substrate.create(spec) as box:
                assert (await box.run(work)).ok
                return await dutyfree.verify(substrate, spec, box, **options)

    return asyncio.run(run())


JUDGE = """mkdir -p /task/src /task/judge && cd /task && printf '#!/bin/sh\nexit 1\n' >judge/run && chmod 755 judge/run
ln -s ../judge src/directory; ln -s ../judge/run src/file; ln judge/run src/second-name"""
CHEAT = "printf '#!/bin/sh\nexit 0\n' >"


@pytest.mark.parametrize(
    "work",
    [
        f"cd /task/src; rm directory; mkdir directory; {CHEAT}directory/run",
        f"cd /task/src; rm file; {CHEAT}file",
        f"cd /task/src; {CHEAT}second-name",
    ],
)
def test_nothing_is_written_through_links_of_the_start_state(work):
    found = from_state(JUDGE, work, allow=["/task/src"], checks=[dutyfree.Check(command=["/task/judge/run"])])
    assert len(found.taken) == 1
    assert found.results[0].outcome.exit_code == 1


def test_a_link_that_the_list_does_not_cover_stays_and_is_in_the_way():
    work = f"cd /task/src; rm directory; mkdir directory; {CHEAT}directory/run.py"
    found = from_state(JUDGE, work, allow=["/task/src/**/*.py"], checks=[PASS])
    assert found.taken == ()
    assert found.refused == (
        "/task/src/directory/run.py: /task/src/directory is in its way, which the list does not allow to replace",
    )


@pytest.mark.parametrize(
    "options",
    [
        {"allow": ["/task/src/directory"]},
        {"allow": ["/task/src/directory/**"]},
        {"allow": ["/task/src/directory/x/y"]},
        {"allow": ["/task/judge"], "hidden": {"/task/src/directory/run": b""}},
    ],
)
def test_links_of_the_start_state_in_what_the_caller_spelled_out_are_refused(options):
    with pytest.raises(dutyfree.Misuse, match="/task/src/directory is a symbolic link in the start state"):
        from_state(JUDGE, "true", checks=[PASS], **options)


def test_honest_changes_of_modes_kinds_and_owners_arrive():
    start = """mkdir -p /task/src/package /task/src/kept && cd /task/src && echo 'exit 0' >tool && touch package/__init__.py kept/conftest.py
    touch plain && ln -s plain link && touch kept/a.py"""
    work = """cd /task/src; chmod 750 tool; chown 1000:1001 tool; rm -r package; echo 1 >package; rm plain; mkdir plain; echo 2 >plain/x
    rm link; rm -r kept; echo 3 >kept"""
    see = "cd /task/src; stat -c '%a %u:%g' tool; cat package plain/x; ls -d link; ls kept"
    found = from_state(start, work, allow=["/task/src"], checks=[dutyfree.Check(command=see)])
    assert found.results[0].outcome.stdout == b"750 1000:1001\n1\n2\nconftest.py\n"
    assert found.taken == ("/task/src/package", "/task/src/plain/x", "/task/src/tool")
    assert found.removed == tuple(f"/task/src/{path}" for path in ("kept/a.py", "link", "package/__init__.py", "plain"))
    assert (
        "/task/src/kept: a directory is in its place, with files that the list does not allow to remove"
        in found.refused
    )


@pytest.mark.parametrize("place", ["t.py", "t.py/x", "t/__init__.py", "__pycache__/t.cpython-311.pyc", "t.pyc", "t.so"])
def test_nothing_stands_where_a_hidden_file_does_or_is_loaded_instead(place):
    async def work(box):
        await box.write(f"/task/tests/{place}", b"raise SystemExit(0)")

    check = dutyfree.Check(command="cd /task/tests && python3 -c 'import t' && ls -A")
    found = play(work, allow=["/task"], hidden={"/task/tests/t.py": b"print('judged')"}, checks=[check])
    assert found.results[0].outcome.stdout.startswith(b"judged\n")
    assert found.taken == ()
    assert len(found.refused) == 1


def test_a_file_where_a_hidden_directory_belongs_is_refused():
    async def work(box):
        await box.write("/task/tests", b"")

    found = play(work, allow=["/task"], hidden={"/task/tests/t": b"yours"}, checks=[cat("/task/tests/t")])
    assert found.passed
    assert found.refused == ("/task/tests: is a directory of hidden files",)


def test_bytecode_of_the_start_state_does_not_run_instead_of_what_is_judged():
    start = """mkdir -p /task/src && cd /task/src && echo 'raise SystemExit(3)' >a.py && echo 'raise SystemExit(4)' >t.py
    python3 -m compileall -q --invalidation-mode unchecked-hash . && ls __pycache__/a.*"""
    check = dutyfree.Check(command="cd /task/src; python3 -c 'import t; import a'")
    work = "echo 'print(1)' >/task/src/a.py"
    found = from_state(start, work, allow=["/task/src/a.py"], hidden={"/task/src/t.py": b"print(2)"}, checks=[check])
    assert found.results[0].outcome.stdout == b"2\n1\n"


def test_bytecode_that_a_check_left_does_not_run_in_the_next_one():
    plant = """import py_compile; open("/tmp/t.py", "w").write("print('planted')")
py_compile.compile("/tmp/t.py", py_compile.importlib.util.cache_from_source("/task/t.py"), invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"""
    checks = [
        dutyfree.Check(command=["python3", "-c", plant]),
        dutyfree.Check(command="cd /task; python3 -c 'import t'"),
    ]
    found = play(nothing, allow=["/task/src"], hidden={"/task/t.py": b"print('judged')"}, checks=checks)
    assert [result.outcome.stdout for result in found.results] == [b"", b"judged\n"]


def test_what_is_allowed_is_read_while_everything_moves():
    flip = "mkdir -p /task/src; cd /task/src; while :; do echo x >a.py; rm -f a.py; mkdir a.py; touch a.py/b; rm -r a.py; done"

    async def work(box):
        await box.run(f"({flip}) >/dev/null 2>&1 &", background=True)

    for _ in range(5):
        assert not play(work, allow=["/task/src"], checks=[dutyfree.Check(command="false")]).passed


def test_names_that_an_agent_chose_can_be_printed():
    async def work(box):
        await box.run("mkdir -p /task; cd /task; ln -s x $'a\\x1b[31m\\nb\\xff'")

    (refused,) = play(work, allow=["/task"], checks=[PASS]).refused
    assert refused == "/task/a\\x1b[31m\\nb\\udcff: is a symlink"


@pytest.mark.parametrize(
    ("work", "check"),
    [
        ("rm -r /task/src/pkg; touch /task/src/pkg", dutyfree.Check(command=["true"], cwd="/task/src/pkg")),
        ("echo root:x:0:0::/:/bin/sh >/etc/passwd", dutyfree.Check(command=["true"], user="nobody")),
    ],
)
def test_a_solution_that_keeps_a_check_from_running_does_not_pass(work, check):
    start = "mkdir -p /task/src/pkg; touch /task/src/pkg/a"
    found = from_state(start, work, allow=["/task/src", "/etc/passwd"], checks=[check, PASS])
    assert "kept it from being judged" in found.results[0].reason
    assert [result.passed for result in found.results] == [False, True]


def test_a_solution_that_does_not_fit_does_not_pass():
    spec = dutyfree.Spec(limits=dutyfree.Limits(disk_bytes=4 << 20))

    async def run():
        async with dutyfree.connect("native") as substrate, substrate.create(spec) as box:
            assert (await box.run("mkdir /task; truncate -s 20M /task/a")).ok
            return await dutyfree.verify(substrate, spec, box, allow=["/task"], checks=[PASS])

    assert "No space left" in asyncio.run(run()).reason


@pytest.mark.parametrize(
    "check", [dutyfree.Check(command=["true"], cwd="/nowhere"), dutyfree.Check(command=["true"], user="nobody-here")]
)
def test_a_check_that_could_never_run_is_the_callers_mistake(check):
    with pytest.raises(dutyfree.Misuse):
        play(nothing, allow=["/task"], checks=[check])


def test_the_loss_of_the_judges_sandbox_is_a_verdict_on_what_ran_in_it():
    spec = dutyfree.Spec(lifetime_s=3)

    async def run():
        async with dutyfree.connect("native") as substrate, substrate.create() as box:
            checks = [dutyfree.Check(command=["sleep", "60"]), PASS]
            return await dutyfree.verify(substrate, spec, box, allow=["/task"], checks=checks)

    found = asyncio.run(run())
    assert ["kept it from being judged" in found.results[0].reason, found.results[1].passed] == [True, False]


def test_after_a_check_that_broke_the_place_of_reports_the_next_one_is_still_judged():
    checks = [dutyfree.Check(command="rm -rf /tmp; touch /tmp"), PASS]
    found = play(nothing, allow=["/task"], checks=checks)
    assert "kept it from being judged" in found.results[1].reason


def test_arguments_that_make_no_sense_are_refused():
    with pytest.raises(dutyfree.Misuse, match="checks"):
        play(nothing, allow=["/task/**"], checks=[])
    with pytest.raises(dutyfree.Misuse, match="report"):
        dutyfree.Check(command=["true"], tests=["one"])
    with pytest.raises(dutyfree.Misuse, match="hidden"):
        play(nothing, allow=["/task/**"], checks=[PASS], hidden={"relative": b""})
    with pytest.raises(dutyfree.Misuse, match="plain path"):
        play(nothing, allow=["/task/**"], checks=[PASS], hidden={"/task//t": b""})
