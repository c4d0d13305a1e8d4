"""What `daytona` makes of the vendor's errors and of a sandbox's user; the rest is shown with its SDK in tests/system."""

import asyncio
import shutil
from asyncio.subprocess import PIPE, STDOUT

import pytest

daytona = pytest.importorskip(
    "daytona", reason="the daytona SDK is not installed; enable: pip install 'dutyfree[daytona]'"
)

from dutyfree.core.errors import DriverError, SandboxLost, Saturated, Unavailable, Unsupported  # noqa: E402
from dutyfree.driver.exec_call import CappedStreams, ExecCall  # noqa: E402
from dutyfree.substrates.daytona.machine import DaytonaMachine, minutes, shell_line  # noqa: E402
from dutyfree.substrates.daytona.vendor import classify  # noqa: E402
from dutyfree.substrates.hosted.boundary import Boundary  # noqa: E402
from dutyfree.substrates.hosted.text import Reading, prepare  # noqa: E402


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (daytona.DaytonaAuthenticationError("no"), Unavailable),
        (daytona.DaytonaForbiddenError("no"), Unavailable),
        (daytona.DaytonaConnectionError("no"), Unavailable),
        (daytona.DaytonaNotFoundError("no"), SandboxLost),
        (daytona.DaytonaRateLimitError("no"), Saturated),
        (daytona.DaytonaError("no", status_code=503), Saturated),
        (daytona.DaytonaError("no", status_code=500), DriverError),
        (daytona.DaytonaTimeoutError("no"), DriverError),
    ],
    ids=lambda value: type(value).__name__,
)
def test_each_error_of_the_vendor_is_one_of_ours(error: Exception, kind: type[Exception]):
    ours = classify(error, "words")
    assert type(ours) is kind
    assert (ours.driver, ours.message.partition(";")[0]) == ("daytona", "words")


@pytest.mark.parametrize(("said", "pause_s"), [("7", 7.0), ("tomorrow", 1.0), ("", 1.0)])
def test_a_busy_vendor_says_when_to_come_again(said: str, pause_s: float):
    error = daytona.DaytonaRateLimitError("no", headers={"Retry-After": said} if said else None)
    assert classify(error, "words").retry_after_s == pause_s


@pytest.mark.parametrize(("seconds", "wanted"), [(1, 1), (60, 1), (61, 2), (300, 5)])
def test_the_vendors_clocks_count_whole_minutes_and_never_none(seconds: float, wanted: int):
    assert minutes(seconds) == wanted


async def said(shell: str, wanted: ExecCall) -> tuple[int | None, bytes, bytes]:
    """What a command leaves that went through a shell's input and one text, as the vendor does it."""
    script = await prepare(wanted, _no_files, shared=True)
    process = await asyncio.create_subprocess_exec(shell, stdin=PIPE, stdout=PIPE, stderr=STDOUT)
    text, _ = await process.communicate(shell_line(script).encode())
    kept = CappedStreams(1 << 20)
    reading = Reading(kept, driver="daytona", shared=True)
    await reading.take(1, text.decode(errors="replace"))
    return reading.ended and reading.ended.exit_code, kept.stdout.kept(), kept.stderr.kept()


async def _no_files(path: str, data: bytes) -> None:
    raise AssertionError(f"{path}: {len(data)} bytes")


@pytest.mark.parametrize("shell", ["zsh", "bash", "dash"])
def test_a_command_is_the_same_in_every_shell_that_the_vendor_may_take(shell: str):
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}; enable: apt-get install -y {shell}")
    words = [
        "sh",
        "-c",
        'cat; printf "%s|" "$@" >&2; exit 3',
        "sh",
        "a b",
        "it's",
        "$HOME",
        "*",
        "",
        "\\n",
        "=ls",
        "~",
        "!",
    ]
    code, out, err = asyncio.run(said(shell, ExecCall(argv=words, stdin=bytes(range(256)), cwd="/usr")))
    assert (code, out) == (3, bytes(range(256)))
    assert err.decode().split("|")[:-1] == words[4:]


class Sandbox:
    """As far as a user is concerned."""

    def __init__(self, user: str) -> None:
        self.user = user


@pytest.mark.parametrize(("own", "wanted"), [("root", "nobody"), ("daytona", "root"), ("daytona", "0")])
def test_another_user_than_the_sandboxes_own_is_not_offered(own: str, wanted: str):
    machine = DaytonaMachine(Sandbox(own), Boundary((), classify))
    with pytest.raises(Unsupported, match="user"):
        asyncio.run(machine.execute(ExecCall(argv=["true"], user=wanted), CappedStreams(10)))
