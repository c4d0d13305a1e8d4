"""Exact bytes through text, with real shells."""

import asyncio
import os
import re
import shutil
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from dutyfree.core.errors import DriverError
from dutyfree.driver.exec_call import STDERR, STDOUT, CappedStreams, ExecCall, ExecEnd
from dutyfree.substrates.hosted.text import INLINE, PIECE, Reading, prepare

EVERY_BYTE = bytes(range(256)) * 40


class Sandbox:
    """What a vendor with a text interface does: runs a script, decodes what it says with replacement characters."""

    def __init__(self, root: Path, shell: str = "bash", *, shared: bool = False) -> None:
        self.root = root
        self.shell = shell
        self.shared = shared

    async def put(self, path: str, data: bytes) -> None:
        Path(path).write_bytes(data)

    async def execute(self, wanted: ExecCall) -> tuple[ExecEnd | None, bytes, bytes]:
        kept = CappedStreams(1 << 30)
        script = self.script = await prepare(wanted, self.put, shared=self.shared, switch=True)
        process = await asyncio.create_subprocess_exec(
            self.shell, "-c", f"echo welcome; echo welcome >&2\n{script}",
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT if self.shared else asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, err = await process.communicate()
        reading = Reading(kept, driver="test", shared=self.shared)
        for stream, data in ((STDOUT, out), (STDERR, err or b"")):
            text = data.decode(errors="replace")
            for start in range(0, len(text), 1000):  # as it may be cut on its way
                await reading.take(stream, text[start : start + 1000])
        return reading.ended, kept.stdout.kept(), kept.stderr.kept()


@pytest.fixture(params=["bash", "bash shared", "dash", "busybox sh"])
def sandbox(request: pytest.FixtureRequest, tmp_path: Path) -> Sandbox:
    shell, _, how = request.param.partition(" ")
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}; enable: apt-get install -y {shell}")
    if shell == "busybox":
        path = tmp_path / "sh"
        path.symlink_to(shutil.which(shell))
        shell = str(path)
    return Sandbox(tmp_path, shell, shared=how == "shared")


def run(sandbox: Sandbox, *argv: str, **fields: object) -> tuple[ExecEnd | None, bytes, bytes]:
    return asyncio.run(sandbox.execute(ExecCall(argv=argv, **fields)))


def test_every_byte_survives_on_both_streams(sandbox: Sandbox):
    ended, out, err = run(sandbox, "sh", "-c", "tee /dev/stderr", stdin=EVERY_BYTE)
    assert (ended.exit_code, out, err) == (0, EVERY_BYTE, EVERY_BYTE)


def test_nothing_is_nothing(sandbox: Sandbox):
    assert run(sandbox, "true")[1:] == (b"", b"")


def test_the_exit_code_is_the_commands_own(sandbox: Sandbox):
    assert run(sandbox, "sh", "-c", "exit 7")[0].exit_code == 7
    assert run(sandbox, "/nowhere/at/all")[0].exit_code == 127


def test_a_shell_says_nothing_of_its_own_about_a_killed_command(sandbox: Sandbox):
    ended, out, err = run(sandbox, "sh", "-c", "kill -9 $$")
    assert (ended.exit_code, out, err) == (137, b"", b"")


def test_a_word_is_a_program_and_never_a_builtin_of_the_shell(sandbox: Sandbox):
    assert run(sandbox, "cd", "/")[0].exit_code == 127


@pytest.mark.parametrize("word", ["a b", "it's", "$HOME", "`id`", "\n", "-n", "é", "\\", '"', "*", ""])
def test_words_and_variables_arrive_as_they_are(sandbox: Sandbox, word: str):
    _, out, _ = run(sandbox, "sh", "-c", 'printf "%s|%s|%s" "$0" "$A" "$PWD"', word, env={"A": word}, cwd="/usr")
    assert out.decode() == f"{word}|{word}|/usr"


def test_variables_whose_names_no_shell_takes_arrive_too(sandbox: Sandbox):
    assert b"a.b-c=1\n" in run(sandbox, "env", env={"a.b-c": "1"})[1]


def test_a_place_that_is_not_there_is_a_refusal(sandbox: Sandbox):
    ended, out, err = run(sandbox, "touch", "/dev/null", cwd="/nowhere")
    assert ended.refusal == "no such directory"
    assert (out, err) == (b"", b"")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes another user; enable: sudo make test")
@pytest.mark.parametrize(
    ("user", "numbers"),
    [("65534", "65534 65534"), ("1234:2345", "1234 2345"), ("nobody", "65534 65534"), ("4321", "4321 0")],
)
@pytest.mark.parametrize(
    "sandbox", ["bash", "bash shared", "dash"], indirect=True
)  # busybox's own setpriv knows no users
def test_the_script_becomes_the_user_that_is_wanted(sandbox: Sandbox, user: str, numbers: str):
    ended, out, _ = run(sandbox, "sh", "-c", "echo $(id -u) $(id -g)", user=user)
    assert (ended.exit_code, out.decode().strip()) == (0, numbers)


@pytest.mark.parametrize("user", ["no-such-user", "root:no-such-group", "-x"])
def test_a_user_nobody_knows_is_a_refusal(sandbox: Sandbox, user: str):
    assert run(sandbox, "true", user=user)[0].refusal == "unknown user"


@pytest.mark.parametrize("size", [INLINE, INLINE + 1, PIECE + 1])
def test_input_of_any_size_arrives_and_leaves_no_file(sandbox: Sandbox, size: int):
    given = os.urandom(size)
    assert run(sandbox, "cat", stdin=given)[1] == given
    used = set(re.findall(r"\.dutyfree-[0-9a-f]{16}", sandbox.script))
    assert bool(used) == (size > INLINE)
    assert not [name for name in os.listdir("/tmp") if name[:26] in used]


def test_input_may_come_in_pieces(sandbox: Sandbox):
    async def pieces() -> AsyncGenerator[bytes, None]:
        for number in range(3):
            yield bytes([number]) * 100_000

    given = b"".join(bytes([number]) * 100_000 for number in range(3))
    assert run(sandbox, "cat", stdin=pieces())[1] == given


def test_a_command_that_does_not_read_its_input_ends_all_the_same(sandbox: Sandbox):
    assert run(sandbox, "true", stdin=bytes(1 << 20))[0].exit_code == 0


def test_a_long_command_goes_by_a_file(sandbox: Sandbox):
    words = ["x" * 1000] * 300
    _, out, _ = run(sandbox, "sh", "-c", 'printf %s "$@" | wc -c', "sh", *words)
    assert int(out) == 300_000


def test_bash_tells_the_commands_own_time(tmp_path: Path):
    ended, _, _ = run(Sandbox(tmp_path), "sleep", "0.05")
    assert ended.run_ns > 50_000_000


@pytest.mark.parametrize("said", [":\n!!!!\n", ":\n:what\n", ":\n" + "A" * 100_000])
def test_what_is_no_such_text_is_a_driver_error(said: str):
    async def main() -> None:
        await Reading(CappedStreams(10), driver="test").take(STDOUT, said)

    with pytest.raises(DriverError, match="the sandbox's shell says"):
        asyncio.run(main())
