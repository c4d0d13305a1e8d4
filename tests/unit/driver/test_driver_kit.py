"""The kit's promises, on a backend of directories and processes: nothing is left behind, and states are counted right."""

import asyncio
from dataclasses import dataclass
from typing import Literal

import pytest
from support.directories import Directories

from dutyfree import driver as kit
from dutyfree.core.errors import DriverError, Misuse, SandboxLost, Unsupported
from dutyfree.core.spec import Spec


def on_directories(test):
    """Run a coroutine test on a backend of its own, and show that nothing is left when its substrate is closed."""

    def run(**arguments):
        async def main():
            backend = Directories()
            substrate = await kit.DriverSubstrate.open(backend)
            try:
                await test(backend, substrate, **arguments)
            finally:
                backend.failing.clear()
                await substrate.close()
            assert [body.removals for body in backend.bodies] == [1] * len(backend.bodies)
            assert not backend.root.exists()

        asyncio.run(main())

    run.__name__ = test.__name__
    run.__signature__ = _without(test, 2)
    return run


def _without(test, count):
    import inspect

    found = inspect.signature(test)
    return found.replace(parameters=list(found.parameters.values())[count:])


async def until(true):
    for _ in range(10_000):
        if true():
            return
        await asyncio.sleep(0)
    raise TimeoutError


async def cancelled_at(step, work):
    """Cancel a piece of work at its step-th turn of the loop; whether it was that long."""
    task = asyncio.ensure_future(work)
    for _ in range(step):
        await asyncio.sleep(0)
        if task.done():
            break
    if task.done():
        return await task
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    return None


@on_directories
async def test_create_cancelled_at_any_turn_leaves_nothing(backend, substrate):
    for step in range(1000):
        box = await cancelled_at(step, substrate._create(Spec()))
        if box is not None:
            break
        assert backend.left() == []
        assert all(body.removals == 1 for body in backend.bodies)
    assert step > 5
    assert (await box.run(["pwd"])).stdout.decode().strip() == str(box.body.place)


@on_directories
async def test_reset_cancelled_at_any_turn_is_completed_or_was_not_begun(backend, substrate):
    async with substrate.create() as box:
        for step in range(1000):
            await box.run("echo dirty >file")
            before = box.body
            task = asyncio.ensure_future(box.reset())
            for _ in range(step):
                await asyncio.sleep(0)
            if task.done():
                break
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert len(backend.left()) == 1
            assert (await box.run("ls")).stdout == (b"file\n" if box.body is before else b"")
        await task
        assert step > 5


@pytest.mark.parametrize("point", ["find", "start", "started", "ready", "prepare"])
@on_directories
async def test_a_create_that_fails_anywhere_is_removed_once_and_says_where(backend, substrate, point):
    backend.failing.add(point)
    with pytest.raises(DriverError, match=f"{point} failed") as failure:
        await substrate.create()
    assert (failure.value.driver, failure.value.step) == ("directories", "create")
    assert backend.left() == []


@pytest.mark.parametrize("point", ["start", "ready", "verify", "prepare"])
@on_directories
async def test_a_reset_that_fails_anywhere_ends_the_sandbox(backend, substrate, point):
    box = await substrate.create()
    backend.failing.add(point)
    with pytest.raises(DriverError, match=f"could not be reset and was destroyed: {point} failed") as failure:
        await box.reset()
    assert failure.value.step == "reset"
    assert backend.left() == []
    with pytest.raises(SandboxLost):
        await box.run("true")


@on_directories
async def test_content_is_deleted_when_the_last_sandbox_on_it_has_ended(backend, substrate):
    parent = await substrate.create()
    await parent.run("echo 1 >file")
    first, second = await parent.fork(2)
    child = await first
    await parent.destroy()
    grandchild_pending, unused = await child.fork(2)
    assert len([name for name in backend.left() if name.startswith("state-")]) == 2
    grandchild = await grandchild_pending
    await child.destroy()
    second.close()
    unused.close()
    assert (await grandchild.run("cat file")).stdout == b"1\n"
    await grandchild.reset()
    assert (await grandchild.run("cat file")).stdout == b"1\n"


@on_directories
async def test_a_fork_that_all_children_have_left_takes_its_states_with_it(backend, substrate):
    async with substrate.create() as parent:
        children = [await child for child in await parent.fork(3)]
        backend.failing.add("started")
        (doomed,) = await parent.fork(1)
        with pytest.raises(DriverError):
            await doomed
        backend.failing.clear()
        assert len([name for name in backend.left() if name.startswith("state-")]) == 1
        for child in children:
            await child.destroy()
        assert len(backend.left()) == 1


@on_directories
async def test_a_snapshot_that_is_removed_stays_for_those_who_stand_on_it(backend, substrate):
    box = await substrate.create()
    await box.run("echo kept >file")
    snapshot = await box.snapshot("k")
    assert (await box.snapshot("k")).key == "k"
    later = await substrate.create(Spec(image=snapshot.image))
    await snapshot.remove()
    await substrate.remove_snapshot("k")
    with pytest.raises(Misuse):
        await substrate.create(Spec(image=snapshot.image))
    assert (await later.run("cat file")).stdout == b"kept\n"
    await later.reset()
    await later.destroy()
    assert [name for name in backend.left() if name.startswith("state-")] == []


@on_directories
async def test_a_temporary_snapshot_goes_with_its_substrate_and_a_kept_one_does_not(backend, substrate):
    box = await substrate.create()
    await box.snapshot()
    await box.snapshot("kept")
    backend.root.joinpath("image").rename(backend.root / "image")
    await substrate._end_all()
    await substrate._keeper.close()
    assert backend.left() == ["state-kept"]


@on_directories
async def test_destroy_waits_for_a_reset_and_a_dead_sandbox_is_not_brought_back(backend, substrate):
    box = await substrate.create()
    resetting = asyncio.ensure_future(box.reset())
    await until(lambda: len(backend.bodies) == 2)
    await box.destroy()
    await resetting
    assert backend.left() == []
    with pytest.raises(SandboxLost):
        await box.reset()


@on_directories
async def test_a_sandbox_whose_process_died_is_lost_and_gives_everything_back(backend, substrate):
    box = await substrate.create()
    box.body.keeper.kill()
    box.body.keeper.wait()
    with pytest.raises(SandboxLost, match="its process ended"):
        await box.run("true")
    await box.destroy()
    assert backend.left() == []


@on_directories
async def test_a_sandbox_that_is_created_while_its_substrate_closes_is_removed(backend, substrate):
    creating = asyncio.ensure_future(substrate._create(Spec()))
    await until(lambda: backend.bodies)
    await substrate.close()
    with pytest.raises(Misuse, match="closed"):
        await creating


@on_directories
async def test_what_is_asked_is_checked_before_anything_is_started(backend, substrate):
    for spec in (Spec(network="none"), Spec(user="nobody"), Spec(isolation="vm")):
        with pytest.raises(Unsupported):
            await substrate.create(spec)
    assert backend.bodies == []


@on_directories
async def test_the_spans_are_the_kits_and_a_sandbox_keeps_the_callers_spec(backend, substrate):
    spec = Spec()
    async with substrate.create(spec) as box:
        assert box.spec is spec
        assert box.network == "host"
        assert [span.name for span in box.timeline.spans] == ["create", "ready"]
    assert box.timeline.spans[-1].name == "destroy"


@dataclass(frozen=True, kw_only=True)
class Options:
    program: Literal["docker", "podman"] = "docker"
    size: int = 1
    pause_s: float | None = None
    quick: bool = False
    place: str | None = None


def test_options_are_parsed_by_their_annotations():
    given = {"program": "podman", "size": "7", "pause_s": "0.5", "quick": "yes", "place": "/x"}
    made = kit.read_options(given, Options, driver="x")
    assert made == Options(program="podman", size=7, pause_s=0.5, quick=True, place="/x")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"programm": "docker"}, "did you mean 'program'"),
        ({"program": "crio"}, "must be docker or podman, not 'crio'"),
        ({"size": "many"}, "must be a whole number, not 'many'"),
        ({"pause_s": "soon"}, "must be a number, not 'soon'"),
        ({"quick": "perhaps"}, "must be yes or no, not 'perhaps'"),
    ],
)
def test_an_option_that_makes_no_sense_is_misuse(options, said):
    with pytest.raises(Misuse, match=said) as error:
        kit.read_options(options, Options, driver="x")
    assert error.value.field == next(iter(options))
