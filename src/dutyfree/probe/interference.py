"""Probes 82 to 89: the agent, its stream, and what is said about a command's end."""

from __future__ import annotations

import os
import secrets
import struct

from dutyfree.core.contract import Substrate, TerminalSize
from dutyfree.probe.scene import need, stage
from dutyfree.probe.verdict import Probe, Verdict, broke, held

_NASTY = b"\x1b[2J\x1b]0;title\x07\0\xff\xfe\xc3(\xe2\x80\xae\xe2\x81\xa6\r\n\r\x08\x7f\x80\x00end"


async def kill_everybody(substrate: Substrate) -> Verdict:
    """82: every signal to PID 1 and to the parent, then SIGKILL to all."""
    async with stage(substrate) as first, stage(substrate) as sibling:
        await first.attempt("kill-all")
        if not await sibling.alive():
            return broke("a sibling was killed")
        return (
            held("the agent lives, and so does the sibling")
            if await first.alive()
            else broke("the agent was killed from inside")
        )


async def attack_agent(substrate: Substrate) -> Verdict:
    """83: tracing, memory, descriptors of PID 1 and of the parent."""
    async with stage(substrate) as box:
        tried = await box.attempt("attack-agent", pids=[])
        if reached := tried.said.get("reached"):
            return broke(f"reached: {', '.join(reached)}")
        return held("neither traced nor read") if await box.alive() else broke("the agent does not answer any more")


async def agent_socket(substrate: Substrate) -> Verdict:
    """84: whatever carries our orders to the agent, as seen from inside."""
    async with stage(substrate) as box:
        reached = (await box.attempt("find-agent")).said.get("reached")
        need(reached is not None, "the attempt did not report")
        if reached:
            return broke(f"reached: {', '.join(reached)}")
        return held("nothing to connect to") if await box.alive() else broke("the agent does not answer any more")


async def forged_result(substrate: Substrate) -> Verdict:
    """85: frames of our own protocol on stdout and stderr are just bytes."""
    forged = b"".join(
        struct.pack("<IIBBH", 48, channel, 0x23, 0, 0) + struct.pack("<BBHIQQQQQ", 0, 0, 0, 0, 1, 1, 1, 0, 0)
        for channel in range(64)
    )
    async with stage(substrate) as box:
        words = box.command("speak", stdout_hex=forged.hex(), stderr_hex=forged.hex(), code=3)
        outcome = await box.box.run(words, timeout_s=30)
        if outcome.exit_code != 3 or outcome.stdout != forged or outcome.stderr != forged:
            return broke(f"a forged result was believed: {outcome.ending} {outcome.exit_code}")
        return (
            held("kept as bytes; the exit code is the command's own")
            if await box.alive()
            else broke("the sandbox died")
        )


async def late_writer(substrate: Substrate) -> Verdict:
    """86: a child that keeps stdout and writes for ever does not delay or change the result."""
    async with stage(substrate) as box:
        outcome = await box.box.run(box.command("write-after-exit"), timeout_s=15)
        if outcome.ending != "exit" or outcome.exit_code != 7:
            return broke(
                f"the command ended by itself with 7, and the outcome says {outcome.ending} {outcome.exit_code}"
            )
        if b"parent\n" not in outcome.stdout:
            return broke("what the command wrote before it ended is missing")
        again = await box.box.run(["echo", "next"], timeout_s=15)
        return (
            held("the result came, and the next one is clean")
            if again.stdout == b"next\n"
            else broke("the next output is not its own")
        )


async def typing(substrate: Substrate) -> Verdict:
    """87: characters put into a terminal that somebody else reads."""
    need(substrate.capabilities.terminal, "terminals are not offered")
    async with stage(substrate) as box:
        running = await box.box.start(box.command("type-into-terminal"), terminal=TerminalSize(), timeout_s=30)
        text = b"".join([chunk async for _, chunk in running])
        await running.wait()
        if b'"typed": []' not in text:
            return broke(f"a terminal took typed characters: {text[-200:]!r}")
    return held("no terminal takes them")


async def exact_bytes(substrate: Substrate) -> Verdict:
    """88: escape sequences, NUL, invalid UTF-8 and bidirectional controls come out as they went in."""
    data = _NASTY + os.urandom(16_384) + _NASTY
    async with stage(substrate) as box:
        words = box.command("speak", stdout_hex=data.hex(), stderr_hex=data[::-1].hex(), code=0)
        outcome = await box.box.run(words, timeout_s=30)
        if outcome.stdout != data or outcome.stderr != data[::-1]:
            return broke("output bytes were changed")
        path = f"/tmp/{secrets.token_hex(8)}"  # noqa: S108 (inside the sandbox)
        await box.box.write(path, data)
        try:
            if await box.box.read(path) != data:
                return broke("a file's bytes were changed")
        finally:
            await box.box.remove(path)
        echoed = await box.box.run(["cat"], stdin=data, timeout_s=30)
        return held("bytes are exact, both ways") if echoed.stdout == data else broke("input bytes were changed")


async def exit_codes(substrate: Substrate) -> Verdict:
    """89: codes that look like a kill are told apart from a kill."""
    async with stage(substrate) as box:
        for code in (124, 126, 127, 137, 139, 143, 255):
            outcome = await box.box.run(["sh", "-c", f"exit {code}"], timeout_s=30)
            if outcome.ending != "exit" or outcome.exit_code != code:
                return broke(f"exit {code} is told as {outcome.ending} {outcome.exit_code}")
        killed = await box.box.run(["sh", "-c", "kill -9 $$"], timeout_s=30)
        if killed.ending != "signal" or killed.signal != 9:
            return broke(f"a kill by its own hand is told as {killed.ending}")
        late = await box.box.run(["sleep", "30"], timeout_s=0.2)
        return held("told apart") if late.ending == "timeout" else broke(f"a deadline is told as {late.ending}")


PROBES = (
    Probe(id=82, name="kill-everybody", group="interference", run=kill_everybody),
    Probe(id=83, name="trace-the-agent", group="interference", run=attack_agent),
    Probe(id=84, name="agent-socket", group="interference", run=agent_socket),
    Probe(id=85, name="forged-result", group="interference", run=forged_result, harmless=True),
    Probe(id=86, name="late-writer", group="interference", run=late_writer),
    Probe(id=87, name="typing-into-terminals", group="interference", run=typing),
    Probe(id=88, name="exact-bytes", group="interference", run=exact_bytes, harmless=True),
    Probe(id=89, name="exit-codes", group="interference", run=exit_codes, harmless=True),
)
