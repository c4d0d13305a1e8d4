"""Carrying out one stage in one sandbox, with everything it says going into a log.

Owns how each kind of stage is done. Where the sandbox comes from and whether its state is kept is the caller's.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from contextlib import suppress
from pathlib import Path
from typing import Final

from dutyfree.core.contract import Command, Sandbox, root_of
from dutyfree.core.errors import Misuse
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Stage
from dutyfree.core.stage import Commands, Files, Repository
from dutyfree.guest.thread import in_thread
from dutyfree.warm.ledger import Ledger
from dutyfree.warm.log import BuildLog
from dutyfree.warm.recipe import Recipe, recipe

OUTPUT_LIMIT_BYTES = 4 << 20
"""Of one command, in the log: head and tail stay."""

_PROTOCOLS: Final = "file:git:http:https:ssh"
"""Not `ext`, by which a URL would be a command of this machine."""


class StageError(Exception):
    """The recipe did not succeed; the log says how."""


async def prepare(stage: Stage, box: Sandbox, log: BuildLog, *, planned: Recipe, ledger: Ledger) -> None:
    """Carry out a stage. `planned` is the recipe its key was made of: local files that have changed since are an error."""
    if isinstance(stage, Files):
        await _put_files(stage, box, log)
        if await in_thread(recipe, stage) != planned:
            raise StageError("local files changed while they were being read")
    elif isinstance(stage, Repository):
        await (_fetch_inside(stage, box, log) if stage.fetch == "inside" else _fetch_outside(stage, box, log, ledger))
    elif isinstance(stage, Commands):
        for command in stage.commands:
            await _run(
                box, log, command, timeout_s=stage.timeout_s, env=stage.env, cwd=stage.cwd, user=stage.user
            )  # fmt: skip


async def _put_files(stage: Files, box: Sandbox, log: BuildLog) -> None:
    for target, content in stage.files.items():
        try:
            if isinstance(content, bytes):
                log.line(f"write {target} ({len(content)} bytes)")
                await box.write(target, content, mode=stage.mode, user=root_of(box))
            else:
                log.line(f"upload {content} to {target}")
                await box.upload(content, target)
        except (OSError, Misuse) as error:
            raise StageError(f"{target}: {error}") from error


async def _fetch_inside(stage: Repository, box: Sandbox, log: BuildLog) -> None:
    await _run(box, log, ["mkdir", "-p", "--", stage.path], timeout_s=stage.timeout_s)
    for words in _git_steps(stage, stage.path):
        await _run(box, log, ["git", *words], timeout_s=stage.timeout_s, env={"GIT_TERMINAL_PROMPT": "0"})


async def _fetch_outside(stage: Repository, box: Sandbox, log: BuildLog, ledger: Ledger) -> None:
    git = shutil.which("git")
    if git is None:
        raise StageError("git is not installed on this machine; fetch='inside' uses the image's own")
    with ledger.scratch() as place:
        checkout = place / "checkout"
        checkout.mkdir()
        try:
            async with asyncio.timeout(stage.timeout_s):
                for words in _git_steps(stage, str(checkout)):
                    await _run_git([git, *words], log, place)
                log.line(f"upload to {stage.path}")
                await box.upload(checkout, stage.path)
        except TimeoutError as error:
            raise StageError(f"it took longer than {stage.timeout_s:g} s") from error


def _git_steps(stage: Repository, place: str) -> list[list[str]]:
    """By hand and not by `clone`, which cannot ask for one commit: a server need not send what nobody wants."""
    url = str(Path(stage.url).absolute()) if stage.fetch == "outside" and os.path.isdir(stage.url) else stage.url
    depth = [f"--depth={stage.depth}"] if stage.depth else []
    # A commit that no branch points at any more is given by most servers when asked for by its id.
    wanted = [stage.commit] if stage.depth else ["+refs/heads/*:refs/remotes/origin/*", stage.commit]
    at = ["-C", place]
    return [
        [*at, "-c", "init.defaultBranch=main", "init", "-q", "--template="],
        [*at, "remote", "add", "--", "origin", url],
        [*at, "fetch", "-q", "--no-tags", *depth, "origin", *wanted],
        [*at, "-c", "advice.detachedHead=false", "checkout", "-q", "--detach", stage.commit],
    ]


async def _run_git(words: list[str], log: BuildLog, place: Path) -> None:
    """Git of this machine. It dies with us: by its group when cancelled, by the kernel after a kill."""
    log.line(f"$ git {' '.join(words[1:])}")
    env = {**os.environ, "GIT_ALLOW_PROTOCOL": _PROTOCOLS, "GIT_TERMINAL_PROMPT": "0", "TMPDIR": str(place)}
    setpriv = shutil.which("setpriv")
    words = [setpriv, "--pdeathsig", "KILL", *words] if setpriv else words
    process = await asyncio.create_subprocess_exec(
        *words, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
        env=env, start_new_session=True,
    )  # fmt: skip
    assert process.stdout is not None  # noqa: S101 - asked for
    try:
        while data := await process.stdout.read(65536):
            log.write(data)
        code = await process.wait()
    except BaseException:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if code:
        raise StageError(f"git exited with {code}")


async def _run(box: Sandbox, log: BuildLog, command: Command, **options: object) -> None:
    shown = command if isinstance(command, str) else " ".join(command)
    log.line(f"$ {shown}")
    outcome = await box.run(
        command, merge_stderr=True, output_limit_bytes=OUTPUT_LIMIT_BYTES, **options  # type: ignore[arg-type]
    )  # fmt: skip
    log.write(outcome.stdout)
    if not outcome.ok:
        raise StageError(f"{_ending(outcome)}: {shown[:200]}")


def _ending(outcome: Outcome) -> str:
    if outcome.ending == "exit":
        return f"a command exited with {outcome.exit_code}"
    return f"a command ended by {outcome.ending}" + (f" {outcome.signal}" if outcome.ending == "signal" else "")
