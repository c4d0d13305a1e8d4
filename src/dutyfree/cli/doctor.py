"""`dutyfree doctor`: what this machine can run, and the exact command that enables the rest.

Drivers say what they see; one that can only tell by trying is started, with one sandbox, and closed again.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from dutyfree import __version__
from dutyfree.cli.capability import table
from dutyfree.cli.parser import Parser
from dutyfree.core.contract import Availability, Capabilities, Driver
from dutyfree.core.errors import DutyfreeError
from dutyfree.core.text import printable
from dutyfree.substrates.qemu.kvm import judge
from dutyfree.substrates.registry import drivers

HELP = "what this machine can run, and the exact command that enables the rest"


def add_arguments(parser: Parser) -> None:
    """Its options."""
    parser.description = f"{HELP}. A substrate that can tell only by trying runs `true` in one sandbox."
    parser.add_argument("--json", action="store_true", help="the same for programs")
    parser.add_argument(
        "--markdown", action="store_true", help="the table of all drivers, from their declarations and not this machine"
    )


def run(args: argparse.Namespace) -> int:
    """Look at every installed driver. Exit code 0 even if some cannot run: that is an answer."""
    if args.markdown:
        print(table(), end="")
        return 0
    found = list(_look())
    if args.json:
        print(json.dumps({"substrates": [_row(*one) for one in found], "host": host_facts()}, indent=2))
    else:
        _show(found)
    return 0


def _look() -> Iterator[tuple[str, str, Availability]]:
    for name, load in drivers():
        summary = ""
        try:
            driver = load()
            summary = driver.summary
            found = driver.probe()
            if found.available and found.capabilities is None:
                found = asyncio.run(_try(driver, found))
        except DutyfreeError as error:  # of one driver: the others are still told
            found = Availability(available=False, reason=error.message, enable=getattr(error, "enable", None))
        yield name, summary, found


async def _try(driver: Driver, found: Availability) -> Availability:
    """Start a driver that cannot tell by looking, and take its answer or its error."""
    try:
        substrate = await driver.connect({})
        try:
            async with substrate.create() as box:
                await box.run(["true"], timeout_s=10)
        finally:
            await substrate.close()
    except DutyfreeError as error:
        return replace(found, available=False, reason=error.message, enable=getattr(error, "enable", None))
    return replace(found, capabilities=substrate.capabilities)


def _row(name: str, summary: str, found: Availability) -> dict[str, Any]:
    return {
        "name": name,
        "summary": summary,
        "available": found.available,
        "reason": found.reason,
        "enable": found.enable,
        "version": found.version,
        "capabilities": capability_facts(found.capabilities),
    }


def capability_facts(offered: Capabilities | None) -> dict[str, Any]:
    """Capabilities as JSON holds them; empty if they cannot be told without connecting."""
    if offered is None:
        return {}
    values = {field.name: getattr(offered, field.name) for field in fields(offered)}
    return {name: sorted(value) if isinstance(value, frozenset) else value for name, value in values.items()} | {
        "notes": dict(offered.notes)
    }


def host_facts() -> dict[str, Any]:
    """Collect the facts of this machine that its measurements depend on."""
    kvm = judge()
    return {
        "dutyfree": __version__,
        "python": platform.python_version(),
        "kernel": platform.release(),
        "machine": platform.machine(),
        "cpus": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "root": os.geteuid() == 0,
        "cgroup": _cgroup(),
        "kvm": kvm.usable,
        "kvm_reason": kvm.reason,
    }


def _cgroup() -> str:
    if Path("/sys/fs/cgroup/cgroup.controllers").exists():
        return "v2"
    return "v1" if Path("/sys/fs/cgroup/memory").is_dir() or Path("/sys/fs/cgroup/pids").is_dir() else "none"


def _show(found: list[tuple[str, str, Availability]]) -> None:
    from rich.console import Console  # noqa: PLC0415 - a quarter of a second that `--json` need not pay
    from rich.table import Table  # noqa: PLC0415
    from rich.text import Text  # noqa: PLC0415

    table = Table("substrate", "", "what it is, or what stands in the way", box=None, pad_edge=False)
    for name, summary, one in sorted(found, key=lambda row: not row[2].available):
        lines = [Text(summary)] if summary else []
        lines.append(Text(printable(one.reason), style="dim" if one.available else "yellow"))
        if one.enable:
            lines.append(Text(f"enable: {printable(one.enable)}"))
        mark = Text("yes", style="green") if one.available else Text("no", style="red")
        table.add_row(name, mark, Text("\n").join(lines))
    console = Console(highlight=False)
    console.print(table)
    host = host_facts()
    memory_gib = host["memory_bytes"] / (1 << 30)
    console.print(
        f"\nhost: {host['cpus']} cpus, {memory_gib:.1f} GiB, linux {host['kernel']}, cgroup {host['cgroup']}, "
        f"{'root' if host['root'] else 'ordinary user'}, kvm {'yes' if host['kvm'] else 'no'} ({host['kvm_reason']})"
    )
