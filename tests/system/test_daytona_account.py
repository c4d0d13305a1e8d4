"""`daytona` with the vendor's own SDK against a server that speaks its wire format: what is asked of it, and what is left."""

import asyncio
import json
from collections.abc import Iterator
from urllib.request import Request, urlopen

import pytest
from doomed import client, ends, kill, sleepers, until
from support.protocol.daytona import IMAGE, SNAPSHOT
from support.protocol.server import Served, served

import dutyfree
from dutyfree.core.contract import Sandbox
from dutyfree.driver.owner import OWNER_LABEL, owner_mark
from dutyfree.substrates.hosted.credential import Credential
from dutyfree.substrates.hosted.substrate import NAME_LABEL
from dutyfree.substrates.registry import find

pytestmark = [pytest.mark.slow("vendors' SDKs over their wire formats"), pytest.mark.protocol]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    pytest.importorskip("daytona", reason="the daytona SDK is not installed; enable: pip install 'dutyfree[daytona]'")
    with served("support.protocol.daytona", tmp_path_factory.mktemp("daytona")) as found:
        yield found


@pytest.fixture(autouse=True)
def _account(server: Served, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("DAYTONA_API_URL", f"{server.url}/api")
    monkeypatch.setenv("DAYTONA_API_KEY", server.key)
    yield
    server.settle()
    assert server.places() == {}


def facts(server: Served, name: str) -> dict[str, object]:
    request = Request(f"{server.url}/api/sandbox/{name}", headers={"Authorization": f"Bearer {server.key}"})
    with urlopen(request) as reply:
        return json.loads(reply.read())


def told_of(server: Served, spec: dutyfree.Spec, **options: str) -> dict[str, object]:
    """What the vendor knows of a sandbox that works."""

    async def main() -> dict[str, object]:
        async with dutyfree.connect("daytona", **options) as substrate, substrate.create(spec) as box:
            assert (await box.run(["true"])).ok
            return facts(server, box.id)

    return asyncio.run(main())


def vendor(server: Served):
    from dutyfree.substrates.daytona.vendor import Daytona

    return Daytona(Credential("DAYTONA_API_KEY", server.key), None)


def test_the_vendor_is_told_whose_a_sandbox_is_and_when_to_end_it(server: Served):
    told = told_of(server, dutyfree.Spec(image=IMAGE, env={"SECRET": "s3cret"}), ttl="90")
    assert told["labels"][OWNER_LABEL] == owner_mark()
    assert told["labels"][NAME_LABEL] == told["name"]
    assert (told["ttlMinutes"], told["autoStopInterval"], told["autoDeleteInterval"]) == (2, 2, 0)
    assert told["networkBlockAll"]
    assert "s3cret" not in json.dumps(told), "the vendor would keep it"


def test_limits_become_the_resources_of_an_image(server: Served):
    limits = dutyfree.Limits(cpus=2, memory_bytes=4 << 30, disk_bytes=8 << 30)

    told = told_of(server, dutyfree.Spec(image=IMAGE, limits=limits, network="host"))
    assert (told["cpu"], told["memory"], told["disk"]) == (2, 4, 8)
    assert not told["networkBlockAll"]


@pytest.mark.parametrize(
    ("image", "limits", "said"),
    [
        (IMAGE, {"memory_bytes": 512 << 20}, "limits.memory_bytes"),
        (IMAGE, {"cpus": 0.5}, "limits.cpus"),
        (f"snapshot:{SNAPSHOT}", {"cpus": 1}, "snapshot"),
        ("host", {"cpus": 1}, "snapshot"),
    ],
)
def test_limits_that_the_vendor_does_not_have_are_refused(image: str, limits: dict[str, float], said: str):
    async def main() -> None:
        async with dutyfree.connect("daytona") as substrate:
            await substrate.create(dutyfree.Spec(image=image, limits=dutyfree.Limits(**limits)))

    with pytest.raises(dutyfree.Unsupported, match=said):
        asyncio.run(main())


@pytest.mark.parametrize(("image", "snapshot"), [("host", None), (f"snapshot:{SNAPSHOT}", SNAPSHOT)])
def test_a_snapshot_is_the_vendors_default_or_one_by_its_name(server: Served, image: str, snapshot: str | None):
    assert told_of(server, dutyfree.Spec(image=image))["snapshot"] == snapshot


@pytest.mark.parametrize("image", ["no-such-image", "snapshot:no-such-snapshot"])
def test_what_the_vendor_does_not_know_is_misuse_of_the_image_and_leaves_nothing(server: Served, image: str):
    async def main() -> None:
        async with dutyfree.connect("daytona") as substrate:
            with pytest.raises(dutyfree.Misuse, match=r"image: .*not found"):
                await substrate.create(dutyfree.Spec(image=image))
            assert server.places() == {}

    asyncio.run(main())


def test_a_machines_clocks_are_set_again(server: Served):
    async def main() -> None:
        account = vendor(server)
        try:
            machine = await account.start(dutyfree.Spec(image=IMAGE), {NAME_LABEL: "dutyfree-clock"}, 60)
            await machine.extend(600)
            told = facts(server, "dutyfree-clock")
            assert (told["ttlMinutes"], told["activity"]) == (10, 1)
            (left_s,) = server.places().values()
            assert 500 < left_s <= 600
            await machine.end()
            await machine.end()
        finally:
            await account.close()

    asyncio.run(main())


def test_sandboxes_of_dead_owners_are_deleted_when_the_next_one_connects(server: Served):
    mark = owner_mark()
    dead = mark.rpartition(".")[0] + ".1"  # the same process number, started at another time
    owners = {"mine": mark, "elsewhere": "elsewhere.1.2.3", "first": dead, "second": dead}

    async def main() -> set[str]:
        account = vendor(server)
        try:
            for name, owner in owners.items():
                marks = {NAME_LABEL: f"dutyfree-{name}", OWNER_LABEL: owner}
                await account.start(dutyfree.Spec(image=IMAGE), marks, 300)
            async with dutyfree.connect("daytona"):
                left = set((await account.marked(OWNER_LABEL)).values())
            for name in owners:
                await account.end(f"dutyfree-{name}")
        finally:
            await account.close()
        return left

    assert asyncio.run(main()) == {mark, "elsewhere.1.2.3"}


def test_after_kill_9_of_a_client_the_next_one_ends_what_it_left(server: Served):
    mark = "86400.7"
    with client("daytona", mark) as (process, name):
        until(lambda: sleepers(mark))
        (pid,) = sleepers(mark)
        assert facts(server, name)["state"] == "started"
        kill(process)

    async def main() -> None:
        async with dutyfree.connect("daytona"):
            assert server.places() == {}

    asyncio.run(main())
    assert ends(pid)


def test_a_key_that_is_not_taken_is_unavailable_and_not_repeated(monkeypatch: pytest.MonkeyPatch):
    secret = "dtn_this-is-not-for-the-eyes-of-others"
    monkeypatch.setenv("DAYTONA_API_KEY", secret)

    async def main() -> None:
        await dutyfree.connect("daytona")

    with pytest.raises(dutyfree.Unavailable, match="Invalid credentials") as caught:
        asyncio.run(main())
    assert caught.value.enable == "export DAYTONA_API_KEY=…"
    assert secret not in f"{caught.value!r} {caught.value} {vars(caught.value)}"
    assert (caught.value.__cause__, caught.value.__context__) == (None, None)


def test_no_key_is_unavailable_with_the_command_that_gives_one(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("DAYTONA_API_KEY")
    found = find("daytona")[0].probe()
    assert (found.available, found.reason, found.enable) == (
        False,
        "DAYTONA_API_KEY is not set",
        "export DAYTONA_API_KEY=…",
    )


def test_a_service_that_is_not_there_is_unavailable(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("DAYTONA_API_URL", "http://127.0.0.1:1/api")

    async def main() -> None:
        await dutyfree.connect("daytona")

    with pytest.raises(dutyfree.Unavailable):
        asyncio.run(main())


def test_a_sandbox_that_the_vendor_ended_is_lost(server: Served):
    async def main() -> None:
        account = vendor(server)
        try:
            async with dutyfree.connect("daytona") as substrate:
                box: Sandbox = await substrate.create(dutyfree.Spec(image=IMAGE))
                await account.end(box.id)
                with pytest.raises(dutyfree.SandboxLost):
                    await box.run(["true"])
        finally:
            await account.close()

    asyncio.run(main())
