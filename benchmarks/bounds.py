"""The bounds that the native substrate promises, each with what was seen and whether it was met.

Judged on what one run measured: medians, ratios of medians, sums. A ratio meets its bound only with its whole 95 %
interval, and misses it only so: an interval that holds the bound settles nothing. A bound whose contender is missing is
not met and not missed; one whose contender failed even once is missed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from benchmarks import docker, native, native_blocking, subprocess_run, transfer
from benchmarks.capacity import Crowd, Throughput
from benchmarks.interleave import Samples


@dataclass(frozen=True, kw_only=True, slots=True)
class Bound:
    """One promise and how it fared."""

    what: str
    bound: str
    seen: str
    met: bool | None
    """None: it could not be measured, or the interval holds the bound; `seen` says which."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Results:
    """Everything one run found."""

    samples: Mapping[str, Samples]
    throughput: Throughput | None
    crowd: Crowd | None
    missing: Mapping[str, str]
    """Why what is not here is not here: by the first part of a contender's name, or the group's."""


class _NotMeasured(LookupError):
    pass


class _NotSettledError(Exception):
    pass


def judge(results: Results) -> list[Bound]:
    """Every row, in the order of the specification."""
    return [_judge(results, what, bound, test) for what, bound, test in _ROWS]


def _judge(results: Results, what: str, bound: str, test: Callable[[Results], tuple[str, bool]]) -> Bound:
    try:
        seen, met = test(results)
    except _NotMeasured as error:
        return Bound(what=what, bound=bound, seen=f"not measured: {error}", met=None)
    except _NotSettledError as error:
        return Bound(what=what, bound=bound, seen=str(error), met=None)
    return Bound(what=what, bound=bound, seen=seen, met=met)


def _times(results: Results, *names: str) -> tuple[list[list[int]], str]:
    """The samples by name, and a note on those that failed."""
    found, failed = [], 0
    for name in names:
        kind = name.partition("/")[0]
        if name not in results.samples:
            raise _NotMeasured(results.missing.get(kind, "not asked for in this run"))
        samples = results.samples[name]
        failed += len(samples.failures)
        if not samples.times_ns:
            raise _NotMeasured(f"every sample failed: {samples.failures[0] if samples.failures else 'none was taken'}")
        found.append(samples.times_ns)
    return found, f"; {failed} samples failed" if failed else ""


def _at_most(name: str, reference: str, limit: float) -> Callable[[Results], tuple[str, bool]]:
    def test(results: Results) -> tuple[str, bool]:
        (ours, theirs), failed = _times(results, name, reference)
        (low, high), text = _ratio(ours, theirs)
        if failed or low > limit:
            return f"{text}{failed}", False
        if high > limit:
            raise _NotSettledError(f"{text}: its interval holds the bound")
        return text, True

    return test


def _faster(name: str, reference: str, factor: float) -> Callable[[Results], tuple[str, bool]]:
    def test(results: Results) -> tuple[str, bool]:
        (ours, theirs), failed = _times(results, name, reference)
        (low, high), text = _ratio(theirs, ours)
        if failed or high < factor:
            return f"{text} faster{failed}", False
        if low < factor:
            raise _NotSettledError(f"{text} faster: its interval holds the bound")
        return f"{text} faster", True

    return test


def _ratio(ours: list[int], theirs: list[int]) -> tuple[tuple[float, float], str]:
    """The interval, and it with the ratio as text."""
    # Here, because numpy and scipy must not be in the process while it measures: they add threads and much to collect.
    from dutyfree.meter.stats import ratio  # noqa: PLC0415

    value, interval = ratio(ours, theirs)
    digits = 0 if value >= 20 else 2
    if interval is None:
        raise _NotSettledError(f"{value:.{digits}f} ×, without an interval: fewer than five samples")
    low, high = interval
    return interval, f"{value:.{digits}f} × [{low:.{digits}f}, {high:.{digits}f}]"


def _tail(results: Results) -> tuple[str, bool]:
    (ours,), failed = _times(results, native.CREATE)
    value = quantile(ours, 0.95) / quantile(ours, 0.5)
    return f"{value:.2f}{failed}", value <= 3 and not failed


def _facade(results: Results) -> tuple[str, bool]:
    (blocking, plain), failed = _times(results, native_blocking.LIST, native.LIST)
    added_ms = (quantile(blocking, 0.5) - quantile(plain, 0.5)) / 1e6
    return f"{added_ms:+.3f} ms{failed}", added_ms <= 0.15 and not failed


def _small_file(results: Results) -> tuple[str, bool]:
    (ours,), failed = _times(results, native.FILE)
    time_ms = quantile(ours, 0.5) / 1e6
    return f"{time_ms:.3f} ms{failed}", time_ms <= 0.5 and not failed


def _rate(name: str) -> Callable[[Results], tuple[str, bool]]:
    def test(results: Results) -> tuple[str, bool]:
        (ours,), failed = _times(results, name)
        rate = transfer.rate_mb_s(quantile(ours, 0.5))
        return f"{rate:.0f} MB/s{failed}", rate >= 400 and not failed

    return test


def _churn(results: Results) -> tuple[str, bool]:
    seen = results.throughput
    if seen is None:
        raise _NotMeasured(results.missing.get("throughput", "not asked for in this run"))
    failed = f"; {seen.failures} failed" if seen.failures else ""
    text = f"{seen.rate_s:.0f} sandboxes/s over {seen.seconds:.0f} s{failed}"
    return text, seen.rate_s >= 250 and not seen.failures


def _leak(results: Results) -> tuple[str, bool]:
    if results.throughput is None:
        raise _NotMeasured(results.missing.get("throughput", "not asked for in this run"))
    left = [*results.throughput.left, *(results.crowd.left if results.crowd else [])]
    return ("nothing left" if not left else f"left: {', '.join(left)}"), not left


def _crowd(results: Results) -> Crowd:
    if results.crowd is None:
        raise _NotMeasured(results.missing.get("crowd", "not asked for in this run"))
    return results.crowd


def _memory(results: Results) -> tuple[str, bool]:
    seen = _crowd(results)
    size_mib = seen.bytes_each / (1 << 20)
    if size_mib <= 0:
        raise _NotMeasured("other processes freed more memory than the sandboxes took; run it on an idle machine")
    return f"{size_mib:.2f} MiB each, {seen.boxes} alive", size_mib <= 1.5


def _flat(results: Results) -> tuple[str, bool]:
    seen = _crowd(results)
    value = seen.last_ns / seen.first_ns
    text = f"{value:.2f} × ({seen.first_ns / 1e6:.2f} ms, then {seen.last_ns / 1e6:.2f} ms with {seen.boxes} alive)"
    return text, value <= 1.5


def _idle(results: Results) -> tuple[str, bool]:
    seen = _crowd(results)
    if seen.watched < seen.boxes:
        raise _NotMeasured(f"only {seen.watched} of {seen.boxes} agents could be looked at in /proc")
    text = (
        f"{seen.agents.wake_ups} wake-ups and {seen.agents.cpu_ns / 1e6:.1f} ms of CPU of {seen.boxes} sandboxes in"
        f" {seen.idle_s:.0f} s; spawner {seen.spawner.wake_ups}, this process {seen.owner.wake_ups}"
    )
    return text, seen.agents.wake_ups == 0 and seen.spawner.wake_ups == 0


def quantile(values: list[int], q: float) -> float:
    """Linear between the neighbours, as numpy's default."""
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low = int(place)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (place - low)


_CREATED = 'create to the first result of `["true"]`'
_TRUE, _BASH = '`subprocess.run(["true"])`', '`subprocess.run(["bash", "-c", "true"])`'
_ROWS: tuple[tuple[str, str, Callable[[Results], tuple[str, bool]]], ...] = (
    (f"{_CREATED}, p50", f"<= 1.5 × {_TRUE}", _at_most(native.CREATE, subprocess_run.TRUE, 1.5)),
    (
        f"{_CREATED}, p50",
        ">= 100 × faster than `docker run --rm --network none`",
        _faster(native.CREATE, docker.RUN, 100),
    ),
    (f"{_CREATED}, p95 / p50", "<= 3", _tail),
    ('`box.run(["true"])`, p50', f"<= 1.0 × {_TRUE}", _at_most(native.LIST, subprocess_run.TRUE, 1.0)),
    ('`box.run("true")`, p50', f"<= 1.0 × {_BASH}", _at_most(native.STRING, subprocess_run.BASH, 1.0)),
    ("`dutyfree.blocking` on top of the async call, p50", "<= +0.15 ms", _facade),
    ("write + read of a 1 KiB file, p50", "<= 0.5 ms together", _small_file),
    ("64 MiB of output, p50", ">= 400 MB/s", _rate(transfer.OUTPUT)),
    ("64 MiB file written, p50", ">= 400 MB/s", _rate(transfer.WRITE)),
    ("64 MiB file read, p50", ">= 400 MB/s", _rate(transfer.READ)),
    ("create + run + destroy, 8 in flight", ">= 250 sandboxes/s", _churn),
    ("the same, after", "no leak", _leak),
    ("live idle sandboxes: machine memory", "<= 1.5 MiB each", _memory),
    ("live idle sandboxes: the last is created at", "<= 1.5 × the time of the first", _flat),
    ("host CPU of an idle sandbox", "0 wake-ups", _idle),
)
