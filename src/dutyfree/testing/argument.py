"""Tests of the arguments of one command: words, environment, place, user; and of what is refused as misuse."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from pathlib import PurePosixPath

import pytest

from dutyfree.core.errors import Misuse, Unsupported
from dutyfree.testing.base import Suite


class ArgumentSuite(Suite):
    async def test_a_list_is_executed_directly_and_nothing_is_expanded(self) -> None:
        words = ["$HOME", "*", "a b", "", "'", '"', "\n", "-n", "é", "`id`"]
        async with self.box() as box:
            outcome = await box.run(["printf", "%s\\0", *words])
        assert outcome.stdout == b"".join(word.encode() + b"\0" for word in words)

    async def test_a_string_is_run_by_a_shell(self) -> None:
        async with self.box() as box:
            outcome = await box.run("a=1; echo $((a + 1)) | tr 2 3; exit 4")
        assert (outcome.stdout, outcome.exit_code) == (b"3\n", 4)

    async def test_a_string_is_run_by_bash_where_there_is_one(self) -> None:
        async with self.box() as box:
            outcome = await box.run('a=(x y); echo "${a[1]}"')
        assert outcome.stdout == b"y\n"

    async def test_an_empty_script_does_nothing(self) -> None:
        async with self.box() as box:
            assert (await box.run("")).ok

    async def test_words_that_are_not_utf8_arrive_as_their_bytes(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["printf", "%s", b"\xff\xfe".decode(errors="surrogateescape")])
        assert outcome.stdout == b"\xff\xfe"

    async def test_a_long_argument_arrives_whole(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["printf", "%s", "x" * 100_000])
        assert len(outcome.stdout) == 100_000

    async def test_a_script_longer_than_one_argument_may_be_runs_as_a_short_one(self) -> None:
        script = 'echo "$#,$1"; cat; exit 4'
        async with self.box() as box:
            short = await box.run(script, stdin=b"input")
            long = await box.run(f"# {'ü' * 100_000}\n{script}", stdin=b"input")
        assert (short.stdout, short.exit_code) == (b"0,\ninput", 4)
        assert (long.stdout, long.exit_code) == (b"0,\ninput", 4), long.stderr[:300]

    async def test_a_mebibyte_of_arguments_arrives_whole(self) -> None:
        async with self.box() as box:
            if box.capabilities.dispatch == "api":
                return  # as long as the substrate's own exec call takes, which is not ours to say
            outcome = await box.run(["printf", "%s", *["x" * (64 << 10)] * 16])
        assert len(outcome.stdout) == 1 << 20

    async def test_arguments_longer_than_a_program_may_have_are_misuse(self) -> None:
        async with self.box() as box:
            with pytest.raises(Misuse):
                await box.run(["printf", "%s", *["x" * 100_000] * 100])
            assert (await box.run(["true"])).ok

    async def test_variables_reach_the_command(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["sh", "-c", 'echo "$A-$B"'], env={"A": "1 2", "B": "ü"})
        assert outcome.stdout.decode() == "1 2-ü\n"

    async def test_variables_of_the_spec_reach_every_command_and_can_be_overridden(self) -> None:
        async with self.box(env={"A": "spec", "B": "spec"}) as box:
            outcome = await box.run(["sh", "-c", "echo $A $B"], env={"B": "run"})
            again = await box.run(["sh", "-c", "echo $A $B"])
        assert (outcome.stdout, again.stdout) == (b"spec run\n", b"spec spec\n")

    async def test_the_callers_own_environment_does_not_leak_in(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DUTYFREE_SECRET_OF_THE_CALLER", "s3cret")
        async with self.connect() as fresh:
            self.substrate = fresh
            async with self.box() as box:
                outcome = await box.run(["env"])
        assert outcome.ok
        assert b"s3cret" not in outcome.stdout

    async def test_a_command_has_a_path_and_a_home(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["sh", "-c", 'test -n "$PATH" && cd "$HOME" && touch here'])
        assert outcome.ok

    async def test_a_command_starts_where_it_is_told(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["pwd"], cwd="/usr")
        assert outcome.stdout == b"/usr\n"

    async def test_the_specs_place_holds_for_every_command(self) -> None:
        async with self.box(cwd="/usr") as box:
            assert (await box.run(["pwd"])).stdout == b"/usr\n"
            assert (await box.run("pwd")).stdout == b"/usr\n"

    async def test_a_place_that_is_not_there_is_misuse(self) -> None:
        async with self.box() as box:
            with pytest.raises(Misuse, match="cwd"):
                await box.run(["true"], cwd="/no/such/place")
            with pytest.raises(Misuse, match="cwd"):
                await box.run(["true"], cwd="relative")
            assert (await box.run(["true"])).ok

    async def test_a_command_can_run_as_another_user(self) -> None:
        async with self.box() as box:
            if not box.capabilities.users:
                with pytest.raises(Unsupported):
                    await box.run(["id", "-u"], user="65534")
                return
            assert (await box.run(["id", "-u"], user="65534")).stdout == b"65534\n"
            assert (await box.run(["id", "-u"], user="root")).stdout == b"0\n"
            assert (await box.run("id -u; id -g", user="1234:2345")).stdout == b"1234\n2345\n"

    async def test_a_user_that_was_added_inside_is_known(self) -> None:
        async with self.box() as box:
            self.isolated()
            if not box.capabilities.users:
                return
            await box.write("/etc/passwd", b"added:x:4321:5432::/:/bin/sh\n", append=True)
            await box.write("/etc/group", b"others:x:6543:\n", append=True)
            assert (await box.run("id -u; id -g", user="added")).stdout == b"4321\n5432\n"
            assert (await box.run("id -u; id -g", user="added:others")).stdout == b"4321\n6543\n"

    async def test_a_place_that_is_not_there_is_told_at_creation(self) -> None:
        with pytest.raises(Misuse, match="cwd"):
            await self.box(cwd="/no/such/place")

    async def test_a_user_that_is_not_there_is_told_at_creation(self) -> None:
        if self.substrate.capabilities.users:
            with pytest.raises(Misuse, match="user"):
                await self.box(user="no-such-user")

    async def test_a_user_nobody_knows_is_misuse(self) -> None:
        async with self.box() as box:
            error = Misuse if box.capabilities.users else Unsupported
            with pytest.raises(error, match="user"):
                await box.run(["true"], user="no-such-user")

    @pytest.mark.parametrize(
        "command",
        [[], [""], ["true\0"], ["true", "a\0b"], "true\0", b"true", [b"true"], ["true", 1], None, 5],
        ids=repr,
    )
    async def test_a_command_that_is_none_is_misuse(self, command: object) -> None:
        async with self.box() as box:
            with pytest.raises(Misuse, match="command"):
                await box.run(command)  # type: ignore[arg-type]

    @pytest.mark.parametrize("env", [{"": "x"}, {"A=B": "x"}, {"A": "x\0"}, {"A": 1}, {1: "x"}, [("A", "x")]], ids=repr)
    async def test_an_environment_that_is_none_is_misuse(self, env: object) -> None:
        async with self.box() as box:
            with pytest.raises(Misuse, match="env"):
                await box.run(["true"], env=env)  # type: ignore[arg-type]

    async def test_input_that_is_neither_bytes_nor_text_is_misuse(self) -> None:
        async with self.box() as box:
            with pytest.raises(Misuse, match="stdin"):
                await box.run(["cat"], stdin=5)  # type: ignore[arg-type]

    async def test_places_may_be_paths_and_users_numbers(self) -> None:
        async with self.box(cwd=PurePosixPath("/")) as box:
            place = PurePosixPath(self.scratch(box)) / "places"
            assert (await box.run(["pwd"])).stdout == b"/\n"
            await box.write(place / "file", "text")
            assert (await box.read(place / "file")) == b"text"
            assert (await box.stat(place / "file")).name == "file"
            assert [one.name for one in await box.list(place)] == ["file"]
            assert (await box.run(["pwd"], cwd=place)).stdout.decode().strip() == str(place)
            if box.capabilities.users:
                assert (await box.run(["id", "-u"], user=0)).stdout == b"0\n"

    async def test_an_unknown_option_is_answered_with_the_right_one(self) -> None:
        async with self.box() as box:
            run: Callable[..., Awaitable[object]] = box.run
            with pytest.raises(Misuse, match="did you mean 'timeout_s'"):
                await run("true", timeout=1)
