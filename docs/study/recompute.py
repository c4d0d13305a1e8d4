"""The study's numbers, computed a second time from its records: numpy, and no code of dutyfree.

    python docs/study/recompute.py [DIRECTORY]

Compares them with summary.json; exit code 1 and the first differences, if there are any.
"""

import gzip
import json
import math
import sys
from collections import defaultdict
from pathlib import Path

import numpy as np

PARTS = ("create", "ready", "setup", "dispatch", "run", "orchestration", "reset", "destroy")
KEY = ("substrate", "dispatch", "tier", "steps", "parallel", "profile")
# Two-sided 95 % points of Student's t by degrees of freedom, for those that a mean's interval may have.
T_TABLE = {29: 2.045229642, 39: 2.022690920, 49: 2.009575237, 59: 2.000995378, 99: 1.984216952}


def read(directory):
    packed = directory / "records.jsonl.gz"
    text = (
        gzip.decompress(packed.read_bytes()).decode() if packed.exists() else (directory / "records.jsonl").read_text()
    )
    return [one for one in map(json.loads, filter(None, text.split("\n"))) if not one["warmup"]]


def quantile(values, q):
    ordered = sorted(values)
    place = q * (len(ordered) - 1)
    low, high = ordered[math.floor(place)], ordered[math.ceil(place)]
    return low if low == high else low + (place % 1) * (high - low)


def held(n, low, high):
    """How often the median lies between the low-th and the high-th of n ordered values: heads of n coins."""
    return sum(math.comb(n, heads) for heads in range(low, high)) / 2**n


def median_ends(values):
    ordered, n = sorted(values), len(values)
    for shift in (0, 1):
        pairs = [(k + shift, n + 1 - k) for k in range(1, n // 2 + 1) if k + shift < n + 1 - k]
        fit = [pair for pair in pairs if 0.9295 <= held(n, *pair) <= 0.9705]
        if fit:
            low, high = min(fit, key=lambda pair: abs(held(n, *pair) - 0.95))
            return [ordered[low - 1], ordered[high - 1]]
    return None


def log_ends(values):
    """Median, and ends of 92 % (94 % from 50 on) between order statistics, as logarithms."""
    ordered, n = sorted(values), len(values)
    level = 0.92 if n < 50 else 0.94
    k = max([j for j in range(1, (n - 1) // 2 + 1) if held(n, j, n + 1 - j) >= level], default=1)
    outer, inner = held(n, k, n + 1 - k), held(n, k + 1, n - k)
    share = min(1.0, max(0.0, (outer - level) / (outer - inner)))
    inward = (n - k) * share / (k + (n - 2 * k) * share)

    def between(far, near):
        return far if math.isinf(far) or far == near else far + inward * (near - far)

    ends = between(ordered[k - 1], ordered[k]), between(ordered[n - k], ordered[n - k - 1])
    return [math.log(value) for value in (quantile(values, 0.5), *ends)]


def tax(mine, host):
    over, under = quantile(mine, 0.5), quantile(host, 0.5)
    if math.isinf(over) or min(len(mine), len(host)) < 5:
        return over / under - 1, None
    (m, low, high), (m0, low0, high0) = log_ends(mine), log_ends(host)
    near, far = math.hypot(m - low, high0 - m0), math.hypot(high - m, m0 - low0)
    return over / under - 1, [math.expm1(m - m0 - near), math.expm1(m - m0 + far)]


def together(group, values):
    """One value for each cohort: its median."""
    if group[0]["parallel"] == 1:
        return values
    cohorts = defaultdict(list)
    for one, value in zip(group, values, strict=True):
        cohorts[one["block"]].append(value)
    return [quantile(cohort, 0.5) for cohort in cohorts.values()]


def student(values, successes):
    """Half of the interval of time per success; only for trials that ran alone and all succeeded."""
    n = len(values)
    return T_TABLE[n - 1] * float(np.std(values, ddof=1)) * math.sqrt(n) / successes if n - 1 in T_TABLE else None


def numbers(group, host):
    good, n = [one for one in group if one["ok"]], len(group)
    times = [one["total_ns"] / 1e9 for one in good]
    censored = [one["total_ns"] / 1e9 if one["ok"] else math.inf for one in group]
    row = {"n": n, "failures": n - len(good)}
    if not good:
        return row
    row |= {
        "p50_s": quantile(censored, 0.5),
        "p95_s": quantile(censored, 0.95) if n >= 20 else None,
        "p99_s": quantile(censored, 0.99) if n >= 100 else None,
        "mean_s": float(np.mean(times)),
        "sd_s": float(np.std(times, ddof=1)) if len(times) > 1 else None,
        "ci95_p50_s": median_ends(together(group, censored)),
        "cost_s": sum(one["total_ns"] for one in group) / 1e9 / len(good),
        "decomposition_s": {part: float(np.mean([one[f"{part}_ns"] for one in good])) / 1e9 for part in PARTS},
    }
    if group[0]["parallel"] == 1 and len(good) == n and (half := student(times, n)) is not None:
        row["ci95_cost_s"] = [row["cost_s"] - half, row["cost_s"] + half]
    if host and any(one["ok"] for one in host):
        under = [one["total_ns"] / 1e9 if one["ok"] else math.inf for one in host]
        row["tax"] = tax(censored, under)[0]
        row["tax_ci95"] = tax(together(group, censored), together(host, under))[1]
    return row


def alike(a, b):
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(alike(a[key], b[key]) for key in a)
    if isinstance(a, list):
        return isinstance(b, list) and all(alike(x, y) for x, y in zip(a, b, strict=True))
    if a is None or b is None:
        return a is b or (a is not None and math.isinf(a))
    return math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12)


def main():
    directory = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parent
    groups = defaultdict(list)
    for one in read(directory):
        groups[tuple(one[k] for k in KEY)].append(one)
    hosts = {key[2:5]: group for key, group in groups.items() if key[0] == "host"}
    told = json.loads((directory / "summary.json").read_text())["results"]
    rows = {tuple(r[k] for k in KEY): r for r in told}
    wrong, compared = [str(key) for key in groups.keys() ^ rows.keys()], 0
    for key in groups.keys() & rows.keys():
        for name, value in numbers(groups[key], hosts.get(key[2:5])).items():
            compared += 1
            if not alike(value, rows[key][name]):
                wrong.append(f"{key} {name}: {value} here, {rows[key][name]} in summary.json")
    print("\n".join(wrong[:10] or ["equal"]), f"({compared} numbers, {len(wrong)} differ)")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
