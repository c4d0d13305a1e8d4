"""The conformance suite: every promise of `core.contract`, as tests that any driver can run. Needs pytest.

    from dutyfree.testing import ContractSuite

    class TestMine(ContractSuite):
        substrate_name = "mine"                     # what dutyfree.connect takes
        gaps = {"test_…": "why it fails here"}      # strict expected failures

The topics can be inherited one by one. `dutyfree.testing.leaks` shows that a test gave everything back.
"""

from __future__ import annotations

import pytest

pytest.register_assert_rewrite(
    *(
        f"dutyfree.testing.{name}"
        for name in (
            "argument",
            "base",
            "concurrency",
            "ending",
            "file",
            "forward",
            "heritage",
            "home",
            "isolation",
            "lifecycle",
            "output",
            "sharing",
            "shell",
            "state",
            "stream",
            "transfer",
        )
    )
)

from dutyfree.testing.argument import ArgumentSuite  # noqa: E402 - after the rewriting is asked for
from dutyfree.testing.base import Suite  # noqa: E402
from dutyfree.testing.concurrency import ConcurrencySuite  # noqa: E402
from dutyfree.testing.ending import EndingSuite  # noqa: E402
from dutyfree.testing.file import FileSuite, LinkedFileSuite, RightsSuite  # noqa: E402
from dutyfree.testing.forward import ForwardSuite  # noqa: E402
from dutyfree.testing.heritage import HeritageSuite  # noqa: E402
from dutyfree.testing.home import HomeSuite  # noqa: E402
from dutyfree.testing.isolation import IsolationSuite, LimitSuite  # noqa: E402
from dutyfree.testing.lifecycle import EndOfLifeSuite, LifecycleSuite  # noqa: E402
from dutyfree.testing.output import OutputSuite  # noqa: E402
from dutyfree.testing.sharing import SharedSuite  # noqa: E402
from dutyfree.testing.shell import ShellSuite  # noqa: E402
from dutyfree.testing.state import ForkSuite, ResetSuite, SnapshotSuite  # noqa: E402
from dutyfree.testing.stream import StreamSuite  # noqa: E402
from dutyfree.testing.transfer import TransferSuite  # noqa: E402

__all__ = [
    "ArgumentSuite",
    "ConcurrencySuite",
    "ContractSuite",
    "EndOfLifeSuite",
    "EndingSuite",
    "FileSuite",
    "ForkSuite",
    "ForwardSuite",
    "HeritageSuite",
    "HomeSuite",
    "IsolationSuite",
    "LifecycleSuite",
    "LimitSuite",
    "LinkedFileSuite",
    "OutputSuite",
    "ResetSuite",
    "RightsSuite",
    "SharedSuite",
    "ShellSuite",
    "SnapshotSuite",
    "StreamSuite",
    "Suite",
    "TransferSuite",
]


class ContractSuite(
    LifecycleSuite,
    EndOfLifeSuite,
    EndingSuite,
    OutputSuite,
    ArgumentSuite,
    ConcurrencySuite,
    StreamSuite,
    ShellSuite,
    FileSuite,
    LinkedFileSuite,
    RightsSuite,
    TransferSuite,
    ForwardSuite,
    IsolationSuite,
    LimitSuite,
    SnapshotSuite,
    ForkSuite,
    HeritageSuite,
    HomeSuite,
    ResetSuite,
):
    """All topics."""
