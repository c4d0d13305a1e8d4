"""`ec2` against a server that speaks the vendor's API, with the vendor's own client; the machines are this one, by ssh."""

import asyncio
from collections.abc import Iterator

import boto3
import pytest
from moto.server import ThreadedMotoServer
from support.sshd import private_sshd

import dutyfree
from dutyfree.core.contract import Substrate
from dutyfree.core.pending import Pending
from dutyfree.driver.owner import OWNER_LABEL, owner_mark
from dutyfree.substrates.ec2.cloud import Cloud

pytestmark = pytest.mark.slow("vendors' SDKs over their wire formats")

IMAGE = "ami-12c6146b"
"""One of those the server knows from the start."""


@pytest.fixture(scope="module")
def cloud() -> Iterator[str]:
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    yield f"http://{host}:{port}"
    server.stop()


@pytest.fixture(autouse=True)
def account(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")


@pytest.fixture(scope="module")
def machine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    with private_sshd(tmp_path_factory.mktemp("sshd")) as options:
        user, _, address = options.pop("host").partition("@")
        yield {"user": user, "address": address, **options}


def states(endpoint: str) -> dict[str, str]:
    answer = boto3.client("ec2", endpoint_url=endpoint).describe_instances()
    found = [one for reservation in answer["Reservations"] for one in reservation["Instances"]]
    return {one["InstanceId"]: one["State"]["Name"] for one in found}


def connect(cloud: str, machine: dict[str, str]) -> Pending[Substrate]:
    return dutyfree.connect("ec2", image=IMAGE, type="t3.micro", endpoint=cloud, poweroff="no", **machine)


def test_a_sandbox_is_an_instance_that_is_terminated_at_its_end(cloud: str, machine: dict[str, str]):
    async def main() -> None:
        before = states(cloud)
        async with connect(cloud, machine) as substrate:
            async with substrate.create() as box:
                (instance,) = set(states(cloud)) - set(before)
                assert states(cloud)[instance] == "running"
                assert (await box.run("echo $((6 * 7))")).stdout == b"42\n"
                assert [span.name for span in box.timeline.spans] == ["create", "ready"]
            assert states(cloud)[instance] == "terminated"

    asyncio.run(main())


def test_closing_terminates_what_is_left(cloud: str, machine: dict[str, str]):
    async def main() -> None:
        substrate = await connect(cloud, machine)
        box = await substrate.create()
        await substrate.close()
        with pytest.raises(dutyfree.SandboxLost):
            await box.run(["true"])
        assert set(states(cloud).values()) == {"terminated"}

    asyncio.run(main())


def test_an_instance_that_will_not_end_does_not_keep_the_others(cloud: str, machine: dict[str, str]):
    api = boto3.client("ec2", endpoint_url=cloud)

    def protect(instance: str, *, on: bool) -> None:
        api.modify_instance_attribute(InstanceId=instance, DisableApiTermination={"Value": on})

    async def main() -> None:
        substrate = await connect(cloud, machine)
        await substrate.create()
        (kept,) = (instance for instance, state in states(cloud).items() if state == "running")
        await substrate.create()
        protect(kept, on=True)
        with pytest.raises(dutyfree.DriverError, match="terminate_instances"):
            await substrate.close()
        assert {i for i, state in states(cloud).items() if state != "terminated"} == {kept}
        protect(kept, on=False)
        api.terminate_instances(InstanceIds=[kept])

    asyncio.run(main())


def test_an_instance_that_cannot_be_logged_in_to_is_terminated(cloud: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("dutyfree.substrates.ec2.substrate.ANSWER_TIMEOUT_S", 0.0)
    way = {"user": "nobody", "address": "127.0.0.1", "port": "1"}

    async def main() -> None:
        async with connect(cloud, way) as substrate:
            with pytest.raises(dutyfree.DriverError, match="cannot be reached"):
                await substrate.create()
        assert set(states(cloud).values()) == {"terminated"}

    asyncio.run(main())


def test_instances_of_dead_owners_are_swept_and_those_of_live_ones_are_not(cloud: str):
    mark = owner_mark()
    dead = mark.rpartition(".")[0] + ".1"  # the same process number, started at another time
    client = boto3.client("ec2", endpoint_url=cloud)
    ids = {}
    for owner in (mark, dead, "who-knows"):
        tags = [{"ResourceType": "instance", "Tags": [{"Key": OWNER_LABEL, "Value": owner}]}]
        answer = client.run_instances(ImageId=IMAGE, MinCount=1, MaxCount=1, TagSpecifications=tags)
        ids[owner] = answer["Instances"][0]["InstanceId"]
    assert asyncio.run(Cloud(cloud, None).sweep()) == [ids[dead]]
    assert states(cloud)[ids[mark]] == "running"
    assert states(cloud)[ids["who-knows"]] == "running"
    client.terminate_instances(InstanceIds=list(ids.values()))


@pytest.mark.parametrize(
    ("options", "field"),
    [({"image": ""}, "image"), ({"reach": "carrier pigeon"}, "reach"), ({"secret": "x"}, "secret")],
)
def test_bad_options_are_misuse_naming_them(options: dict[str, str], field: str):
    async def main() -> None:
        await dutyfree.connect("ec2", **{"image": IMAGE, "type": "t3.micro", "user": "admin", **options})

    with pytest.raises(dutyfree.Misuse, match=field):
        asyncio.run(main())


def test_without_credentials_it_is_unavailable(monkeypatch: pytest.MonkeyPatch, cloud: str, machine: dict[str, str]):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", "/nonexistent")

    async def main() -> None:
        await connect(cloud, machine)

    with pytest.raises(dutyfree.Unavailable, match="credentials"):
        asyncio.run(main())
