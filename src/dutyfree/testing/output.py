"""Tests of input and output: exact bytes, limits, streams apart or together."""

from __future__ import annotations

import hashlib

import pytest

from dutyfree.core.errors import Misuse
from dutyfree.testing.base import Suite

ALL_BYTES = bytes(range(256))
PRINT_ALL = 'i=0; while [ $i -lt 256 ]; do printf "\\\\$(printf %03o $i)"; i=$((i+1)); done'


class OutputSuite(Suite):
    async def test_every_byte_value_comes_out_unchanged(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["sh", "-c", PRINT_ALL])
        assert outcome.stdout == ALL_BYTES

    @pytest.mark.parametrize(
        "data", [b"\x00", b"a\x00b\x00", b"\xff\xfe\x80", b"\x1b[31mred\x1b[0m", b"\r\n\r", b"no newline"], ids=repr
    )
    async def test_nul_escape_and_broken_utf8_pass_both_ways(self, data: bytes) -> None:
        async with self.box() as box:
            outcome = await box.run(["cat"], stdin=data)
        assert outcome.stdout == data

    async def test_stdout_and_stderr_are_kept_apart(self) -> None:
        async with self.box() as box:
            outcome = await box.run("echo out; echo err >&2")
        assert (outcome.stdout, outcome.stderr) == (b"out\n", b"err\n")

    async def test_merged_streams_keep_their_order(self) -> None:
        async with self.box() as box:
            outcome = await box.run("for i in 1 2 3; do echo o$i; echo e$i >&2; done", merge_stderr=True)
        assert (outcome.stdout, outcome.stderr) == (b"o1\ne1\no2\ne2\no3\ne3\n", b"")

    async def test_without_input_a_command_reads_its_end_at_once(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["cat"], timeout_s=30)
        assert (outcome.ending, outcome.stdout) == ("exit", b"")

    async def test_large_input_arrives_whole(self) -> None:
        data = ALL_BYTES * (8 << 12)
        async with self.box() as box:
            outcome = await box.run(["sha256sum"], stdin=data, timeout_s=60)
        assert outcome.text().split()[0] == hashlib.sha256(data).hexdigest()

    async def test_large_input_and_output_at_once_do_not_deadlock(self) -> None:
        data = ALL_BYTES * (8 << 12)
        async with self.box() as box:
            outcome = await box.run(["cat"], stdin=data, timeout_s=60)
        assert outcome.stdout == data

    async def test_input_nobody_reads_is_no_error(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["true"], stdin=b"x" * (4 << 20), timeout_s=60)
        assert outcome.ok

    async def test_large_output_is_whole_below_the_limit(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["head", "-c", str(12 << 20), "/dev/zero"], timeout_s=60)
        assert (len(outcome.stdout), outcome.truncated, outcome.omitted_bytes) == (12 << 20, False, 0)

    async def test_output_beyond_the_limit_loses_its_middle(self) -> None:
        async with self.box() as box:
            script = "printf HEAD; head -c 1000000 /dev/zero; printf TAIL"
            outcome = await box.run(script, output_limit_bytes=1000, timeout_s=60)
        assert outcome.ending == "exit"
        assert outcome.truncated
        assert outcome.stdout.startswith(b"HEAD")
        assert outcome.stdout.endswith(b"TAIL")
        assert len(outcome.stdout) + outcome.omitted_bytes == 1_000_008
        assert len(outcome.stdout) <= 1000

    async def test_output_of_exactly_the_limit_is_whole(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["head", "-c", "1000", "/dev/zero"], output_limit_bytes=1000)
        assert (len(outcome.stdout), outcome.truncated) == (1000, False)

    async def test_the_limit_holds_for_each_stream(self) -> None:
        async with self.box() as box:
            outcome = await box.run("echo short; head -c 5000 /dev/zero >&2", output_limit_bytes=100)
        assert outcome.stdout == b"short\n"
        assert outcome.truncated
        assert outcome.omitted_bytes == 5000 - len(outcome.stderr)

    @pytest.mark.parametrize("limit", [0, 1, 100, 20_000])
    async def test_each_stream_tells_where_its_gap_is(self, limit: int) -> None:
        async with self.box() as box:
            outcome = await box.run("seq 5000; seq 6000 9000 >&2", output_limit_bytes=limit, timeout_s=60)
        out = b"".join(b"%d\n" % n for n in range(1, 5001))
        err = b"".join(b"%d\n" % n for n in range(6000, 9001))
        for whole, kept, gap, omitted in (
            (out, outcome.stdout, outcome.stdout_gap, outcome.stdout_omitted_bytes),
            (err, outcome.stderr, outcome.stderr_gap, outcome.stderr_omitted_bytes),
        ):
            assert len(kept) + omitted == len(whole)
            if omitted:
                assert gap is not None
                assert whole.startswith(kept[:gap])
                assert whole.endswith(kept[gap:])
            else:
                assert (gap, kept) == (None, whole)
        assert outcome.truncated == (outcome.omitted_bytes > 0)

    async def test_an_output_limit_that_is_no_number_of_bytes_is_misuse(self) -> None:
        async with self.box() as box:
            for value in (-1, 1.5, None):
                with pytest.raises(Misuse, match="output_limit_bytes"):
                    await box.run(["true"], output_limit_bytes=value)  # type: ignore[arg-type]

    async def test_text_replaces_what_is_not_utf8(self) -> None:
        async with self.box() as box:
            outcome = await box.run(["printf", "a\\377b"])
        assert outcome.text() == "a\N{REPLACEMENT CHARACTER}b"
