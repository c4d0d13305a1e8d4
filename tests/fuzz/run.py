"""`make fuzz`: coverage-guided fuzzers of everything that reads what somebody hostile wrote.

    .venv/bin/python tests/fuzz/run.py [--seconds 600] [--seed N] [TARGET …]

agent: bytes from a host to the C agent · tar: archives to its decoder (libFuzzer, AddressSanitizer, UndefinedBehaviourSanitizer) ·
client: bytes from a hostile agent to the Python client · layer: layers and images to the store · api: arguments of every call (atheris).
Prints the seed; a finding's input is kept, and named. Exit code 1 if there is any.
"""

import argparse
import os
import secrets
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from seeds import write_seeds

HERE = Path(__file__).parent
NATIVE = HERE.parents[1] / "native"
NATIVE_TARGETS = ("agent", "tar")
PYTHON_TARGETS = ("client", "layer", "api")
TARGETS = NATIVE_TARGETS + PYTHON_TARGETS
READ_ONLY = 'mount -o remount,bind,ro / && exec "$0" "$@"'
"""The target sees the machine, and can change nothing of it outside /dev/shm, where it works."""


def missing(target):
    """What keeps a target from running here; None: nothing."""
    if target in NATIVE_TARGETS:
        found = shutil.which("clang") or next(map(str, Path("/usr/bin").glob("clang-[0-9]*")), None)
        runtime = ["-print-file-name=libclang_rt.fuzzer-" + os.uname().machine + ".a"]
        there = found and os.path.isabs(
            subprocess.run([found, *runtime], capture_output=True, text=True, check=True).stdout
        )
        return None if there else "clang or its fuzzer is missing: apt-get install -y clang libclang-rt-dev"
    if os.geteuid() != 0:
        return "root is needed, to make the machine read-only first: sudo make fuzz"
    try:
        import atheris  # noqa: F401 - is it there?
    except ImportError:
        return "atheris is missing: pip install atheris"
    return None


def command(target, keep):
    if target in NATIVE_TARGETS:
        subprocess.run(["flock", str(NATIVE), "make", "-s", "-C", str(NATIVE), "FUZZ=1"], check=True)
        write_seeds(target, keep / "seeds")
        place = Path("/keep") if target == "agent" else keep
        return [
            str(NATIVE / "build-fuzz" / f"fuzz-{target}"),
            str(place / "seeds"),
            f"-artifact_prefix={place}/finding-",
        ]
    words = [sys.executable, str(HERE / f"{target}.py"), f"-artifact_prefix={keep}/finding-"]
    return ["unshare", "--mount", "--propagation", "private", "sh", "-c", READ_ONLY, *words]


def fuzz(target, seconds, seed, results):
    """Run one; the findings, each a file in `results`, and what was said."""
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix=f"fuzz-{target}-") as folder:
        keep = Path(folder)
        keep.chmod(0o777)
        options = [
            f"-max_total_time={seconds}",
            f"-seed={seed}",
            "-max_len=16384",
            "-timeout=60",
            "-rss_limit_mb=6000",
            "-print_final_stats=1",
        ]
        environment = {
            **os.environ,
            "FUZZ_KEEP": str(keep),
            "ASAN_OPTIONS": "detect_leaks=0:allocator_may_return_null=1",
            "TMPDIR": str(keep),
        }
        done = subprocess.run(
            [*command(target, keep), *options],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        said = done.stdout + done.stderr
        found = []
        for path in keep.glob("finding-*"):
            results.mkdir(parents=True, exist_ok=True)
            found.append(shutil.copy(path, results / f"{target}-{path.name}"))
        if done.returncode and not found:
            results.mkdir(parents=True, exist_ok=True)
            found.append(results / f"{target}-said")
            found[-1].write_text(said)
    return found, said


def executions(said):
    """How many inputs were tried."""
    counts = [int(line.split(":")[-1]) for line in said.splitlines() if "stat::number_of_executed_units" in line]
    return counts[-1] if counts else 0


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=600, help="for each target")
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("-o", dest="results", type=Path, default=Path("out/fuzz"), help="where findings go")
    parser.add_argument("targets", nargs="*", choices=[*TARGETS, []], help="all, if none is named")
    args = parser.parse_args()
    seed = args.seed or secrets.randbelow(1 << 31) + 1
    print(f"seed {seed}", flush=True)
    failed = False
    for target in args.targets or TARGETS:
        if why := missing(target):
            print(f"{target}: not run: {why}", flush=True)
            continue
        found, said = fuzz(target, args.seconds, seed, args.results)
        failed |= bool(found)
        print(f"{target}: {executions(said)} inputs in {args.seconds} s, {len(found)} findings", flush=True)
        if found:
            print(
                said[said.find("=== Uncaught") :][:3000] if "=== Uncaught" in said else said[-4000:],
                *found,
                sep="\n",
                flush=True,
            )
    sys.exit(failed)


if __name__ == "__main__":
    main()
