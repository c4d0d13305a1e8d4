"""What a pool and its stages save: one run, interleaved, ratios of medians.

    python -m benchmarks.warm [--rounds 200] [--slow 10] [--docker] [-o FILE.json]

native: a fresh sandbox of the plain image (T0), one from the stage that has T2's repository and dependencies, a claim of one that waits
there, and T2's clone and install done in a fresh sandbox (in `--slow` of the rounds). With --docker, which needs `dutyfree image build
bench`: `docker run` beside a claim from `warm:docker`. Each but the bare claims is timed to the first result of `["true"]`.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from contextlib import AsyncExitStack
from pathlib import Path
from statistics import median

import dutyfree
from dutyfree.meter.workloads.material import SITE, attrs_project, cache_directory
from dutyfree.meter.workloads.tree import PYTHON
from dutyfree.warm import Settings, open_pool
from tests.support.daemons import docker_socket

IDLE = 8
BOUNDS = (
    ("a sandbox at the dependency stage, to its first result, by one of the plain image", "stage", "plain", "<=", 1.3),
    ("cloning and installing in a fresh sandbox (from local files, no network), by a sandbox at the dependency stage", "by hand", "stage", ">=", 300.0),
    ("`docker run`, by a claim from warm:docker with its first result", "docker run", "docker claim, first result", ">=", 20.0),
)  # fmt: skip
CLAIM_MS = 1.0


def stages(project):
    """T2's set-up as stages: the checkout, then what its tests import."""
    return (
        dutyfree.Repository(url=str(project.repository), commit=project.commit, path="/srv/repo"),
        dutyfree.Files(files={"/srv/site": project.site}, name="dependencies"),
    )


async def first_result(pending):
    """Seconds from the request to the result of `true`; the sandbox is given back outside of that."""
    start = time.perf_counter()
    box = await pending
    took = time.perf_counter()
    try:
        out = await box.run(["true"])
        end = time.perf_counter()
        if not out.ok:
            raise RuntimeError(out)
    finally:
        await box.destroy()
    return took - start, end - start


def wheels():
    """What T2's tests import, as an index would give it, and the program that installs it; fetched once."""
    place = cache_directory() / "wheels"
    if not place.exists():
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=place.parent) as draft:
            names = [requirement.split()[0] for requirement in SITE]
            options = [
                "--quiet",
                "--disable-pip-version-check",
                "--no-deps",
                "--only-binary",
                ":all:",
                "--dest",
                f"{draft}/wheels",
            ]
            subprocess.run([sys.executable, "-m", "pip", "download", *options, *names, "pip"], check=True)
            Path(draft, "wheels").rename(place)
    return place


async def by_hand(substrate, project):
    """What T2 pays without stages: clone and install in each fresh sandbox. Everything is there already: no network is timed."""
    start = time.perf_counter()
    async with substrate.create() as box:
        created = time.perf_counter() - start
        await box.upload(project.repository, "/srv/served.git")
        await box.upload(wheels(), "/srv/wheels")
        script = f"""
        set -e
        git clone -q /srv/served.git /srv/repo
        git -C /srv/repo checkout -q {project.commit}
        export PYTHONPATH=$(echo /srv/wheels/pip-*.whl)
        {PYTHON} -m pip install --quiet --no-index --find-links /srv/wheels --no-deps --target /srv/site \\
            {" ".join(requirement.split()[0] for requirement in SITE)}
        """
        begun = time.perf_counter()
        out = await box.run(script, env={"PIP_ROOT_USER_ACTION": "ignore"})
        if not out.ok:
            raise RuntimeError(out)
        return created + time.perf_counter() - begun


async def native(options, seen):
    project = attrs_project()
    spec = dutyfree.Spec(stages=stages(project))
    async with open_pool("native", targets=[(spec, IDLE)], settings=Settings(demand=False)) as pool:
        await pool.settled()
        keys = []
        await pool.build(spec, lambda step: keys.append(step.key))
        staged = dutyfree.Spec(image=f"snapshot:{keys[-1]}")

        async def plain():
            seen["plain"].append((await first_result(pool.substrate.create()))[1])

        async def stage():
            seen["stage"].append((await first_result(pool.substrate.create(staged)))[1])

        async def claim():
            bare, whole = await first_result(pool.create(spec))
            seen["claim"].append(bare)
            seen["claim, first result"].append(whole)

        async def hand():
            seen["by hand"].append(await by_hand(pool.substrate, project))

        order = random.Random(options.seed)
        for number in range(-3, options.rounds):
            due = [plain, stage, claim]
            if number % max(1, options.rounds // options.slow) == 0:
                due.append(hand)
            order.shuffle(due)
            for sample in due:
                await sample()
                await pool.settled()
            if number < 0:
                seen.clear()
        print(f"native pool: {pool.metrics()}", file=sys.stderr)


async def docker(options, seen, socket):
    async with AsyncExitStack() as stack:
        spec = dutyfree.Spec(image="bench")
        name = f"docker?socket={socket}"
        pool = await stack.enter_async_context(
            open_pool(name, targets=[(spec, 2)], settings=Settings(demand=False, refill=1))
        )
        await pool.settled()
        image = await pool.image_key("bench")
        command = ["docker", "--host", f"unix://{socket}", "run", "--rm", "--network", "none", image, "true"]
        for number in range(-1, options.slow):
            bare, whole = await first_result(pool.create(spec))
            await pool.settled()
            start = time.perf_counter()
            process = await asyncio.create_subprocess_exec(*command)
            if await process.wait():
                raise RuntimeError("docker run failed")
            if number >= 0:
                seen["docker run"].append(time.perf_counter() - start)
                seen["docker claim"].append(bare)
                seen["docker claim, first result"].append(whole)


def report(seen):
    print("| what | n | p50 | p95 |\n|---|---|---|---|")
    for what, times in seen.items():
        times.sort()
        print(
            f"| {what} | {len(times)} | {median(times) * 1e3:.3f} ms | {times[int(0.95 * len(times))] * 1e3:.3f} ms |"
        )
    print("\n| bound | | seen |\n|---|---|---|")
    if seen["claim"]:
        verdict = "met" if median(seen["claim"]) * 1e3 <= CLAIM_MS else "**missed**"
        print(f"| a claim on native, p50 | <= {CLAIM_MS} ms | {median(seen['claim']) * 1e3:.3f} ms {verdict} |")
    for what, above, below, sign, bound in BOUNDS:
        if seen[above] and seen[below]:
            ratio = median(seen[above]) / median(seen[below])
            met = ratio <= bound if sign == "<=" else ratio >= bound
            print(f"| {what} | {sign} {bound:g} x | {ratio:.2f} x {'met' if met else '**missed**'} |")


async def main(options):
    seen = defaultdict(list)
    await native(options, seen)
    if options.docker:
        with docker_socket() as socket:
            await docker(options, seen, socket)
    report(seen)
    if options.output:
        options.output.write_text(json.dumps(seen) + "\n")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--slow", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--docker", action="store_true")
    parser.add_argument("-o", "--output", type=Path)
    asyncio.run(main(parser.parse_args()))
