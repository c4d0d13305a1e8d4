"""What adapters share: one connection per process, sandboxes from any loop and thread, and failures that say so."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from dutyfree.adapters import rollout
from dutyfree.core.errors import Misuse, SandboxLost, Unsupported
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Spec
from dutyfree.core.stage import Commands


@pytest.fixture(autouse=True)
def closed():
    yield
    rollout.close_all()


async def _uses_two_rollouts(name: str = "host") -> None:
    one, other = await asyncio.gather(*(rollout.begin(rollout.start_of(substrate=name)) for _ in range(2)))
    assert (await one.run("echo $((40 + 2))")).stdout == b"42\n"
    place = await one.path("deep/file")
    await one.write(place, b"content")
    assert await one.read(place) == b"content"
    assert (await one.stat(place)).size_bytes == 7
    await asyncio.gather(one.end(), other.end())
    with pytest.raises(SandboxLost):
        await one.run("true")


def test_two_event_loops_share_one_connection() -> None:
    asyncio.run(_uses_two_rollouts())
    first = rollout.substrate_of("host")
    asyncio.run(_uses_two_rollouts())
    assert rollout.substrate_of("host") is first


def test_a_cancelled_call_has_ended_when_the_cancellation_is_seen() -> None:
    async def body() -> None:
        box = await rollout.begin(rollout.start_of(substrate="host"))
        place = Path(await box.path("pid"))
        call = asyncio.ensure_future(box.run(f"echo $$ >{place}.new; mv {place}.new {place}; exec sleep 100"))
        while not place.exists():  # noqa: ASYNC110 - the command can only be looked at
            await asyncio.sleep(0.01)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        with pytest.raises(ProcessLookupError):
            os.kill(int(place.read_text()), 0)
        await box.end()

    asyncio.run(body())


def test_the_start_is_read_from_the_settings_that_frameworks_pass_on(tmp_path, monkeypatch) -> None:
    (tmp_path / "start.toml").write_text('image = "a"\nuser = "u"\n[[stage]]\ncommands = ["true"]\n')
    start = rollout.start_of(start=tmp_path / "start.toml", image="b", env={"A": "1"}, network=["h:1"], cpus=0.5)
    assert (start.spec.image, start.spec.user, start.spec.env) == ("b", "u", {"A": "1"})
    assert (start.spec.network.allow, start.spec.limits.cpus) == (("h:1",), 0.5)
    assert start.name == "warm:native"
    assert rollout.Start(substrate="warm:docker", spec=start.spec).name == "warm:docker"
    monkeypatch.setenv(rollout.VARIABLE, "host")
    assert rollout.Start(spec=Spec(stages=(Commands(commands=["true"]),))).name == "warm:host"
    assert rollout.start_of().name == "host"


def test_a_failure_of_the_machinery_is_the_frameworks_own_error_and_a_mistake_is_not() -> None:
    with pytest.raises(ConnectionError, match="gone"), rollout.failing_as(ConnectionError):
        raise SandboxLost("gone")
    with pytest.raises(Misuse), rollout.failing_as(ConnectionError):
        raise Misuse("wrong", field="cwd")


def test_the_status_is_the_number_that_a_shell_would_give() -> None:
    assert rollout.exit_status(Outcome(ending="exit", exit_code=3)) == 3
    assert rollout.exit_status(Outcome(ending="signal", signal=15)) == 143
    assert rollout.exit_status(Outcome(ending="oom")) == 137


def _left(pid: int) -> list[str]:
    found = subprocess.run(["pgrep", "-xf", f"sleep {SECONDS}"], capture_output=True, text=True, check=False)
    return [*found.stdout.split(), *map(str, Path("/dev/shm").glob(f"dutyfree-host-{pid}-*"))]


SECONDS = 4242
USES = f"""
import os, sys, time
from dutyfree.adapters import rollout
box = rollout.lease(rollout.start_of(substrate=sys.argv[1]))
box.start(["sleep", "{SECONDS}"], background=True)
print(os.getpid(), flush=True)
"""


def test_a_process_that_ends_without_a_word_leaves_nothing() -> None:
    done = subprocess.run([sys.executable, "-c", USES, "host"], capture_output=True, text=True, check=True, timeout=60)
    assert "Traceback" not in done.stderr
    assert _left(int(done.stdout)) == []


def test_a_process_that_is_interrupted_in_mid_run_leaves_nothing() -> None:
    script = USES + "box.run(['sleep', '100'])\n"
    with subprocess.Popen([sys.executable, "-c", script, "host"], stdout=-1, stderr=-1, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=60)[1]
    assert error.rstrip().endswith("KeyboardInterrupt")
    assert _left(pid) == []


def test_what_one_container_cannot_be_is_refused_by_name() -> None:
    from dutyfree.adapters.compose import composed

    service = {"image": "a", "environment": ["A=1", "B"], "mem_limit": "512m", "command": "sleep 1", "x-own": 1}
    said = composed({"services": {"default": service}})
    assert said["env"] == {"A": "1", "B": ""}
    assert said["memory_bytes"] == 512 << 20
    with pytest.raises(Unsupported, match="privileged, volumes cannot"):
        composed({"services": {"default": {**service, "privileged": True, "volumes": []}}})
    with pytest.raises(Misuse, match="2 services"):
        composed({"services": {"a": service, "b": service}})
    with pytest.raises(Unsupported, match="bridge"):
        composed({"services": {"default": {"network_mode": "bridge"}}})
    with pytest.raises(Misuse, match="no size"):
        composed({"services": {"default": {"mem_limit": "much"}}})
