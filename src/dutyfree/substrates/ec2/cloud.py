"""The vendor's API, as far as it is needed: start an instance, find its address, terminate it, find those left behind.

boto3 blocks, so every call goes to a thread. Credentials and region are boto3's own business: from the environment or
its configuration, never from our options, so that they are in no record and no log.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import boto3
from botocore.exceptions import BotoCoreError, ClientError

from dutyfree.core.errors import DriverError, Saturated, Unavailable
from dutyfree.core.pending import finish
from dutyfree.driver.owner import OWNER_LABEL, is_orphan
from dutyfree.driver.program import poll

RUNNING_TIMEOUT_S = 300.0
_LONGEST_PAUSE_S = 2.0
"""The vendor limits how often one may ask."""
_FULL = {"InstanceLimitExceeded", "InsufficientInstanceCapacity", "RequestLimitExceeded", "VcpuLimitExceeded"}
_ALIVE = ["pending", "running"]

Reach = Literal["public", "private"]


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """Type of machine to start."""

    image: str
    """The id of a machine image whose login user may be reached by ssh with `key`."""
    type: str
    key: str | None = None
    """The name of a key pair the vendor knows."""
    subnet: str | None = None
    group: str | None = None
    """The id of a security group that lets us in by ssh."""


class Cloud:
    """One region of one account."""

    def __init__(self, endpoint: str | None, region: str | None) -> None:
        try:
            self._client = boto3.Session().client("ec2", endpoint_url=endpoint, region_name=region)
        except BotoCoreError as error:
            raise Unavailable(str(error), enable="export AWS_REGION=…, and credentials", driver="ec2") from error

    async def start(self, kind: Kind, owner: str, name: str, script: str) -> str:
        """Begin to start one instance, marked as its owner's; its id. Cancelled: it is terminated."""
        wanted: dict[str, Any] = {
            "ImageId": kind.image,
            "InstanceType": kind.type,
            "MinCount": 1,
            "MaxCount": 1,
            "ClientToken": name,
            "UserData": script,
            # The machine can end itself, and what ended costs nothing.
            "InstanceInitiatedShutdownBehavior": "terminate",
            "TagSpecifications": [
                {
                    "ResourceType": "instance",
                    "Tags": [{"Key": "Name", "Value": name}, {"Key": OWNER_LABEL, "Value": owner}],
                }
            ],
        }
        wanted |= {"KeyName": kind.key} if kind.key else {}
        wanted |= {"SubnetId": kind.subnet} if kind.subnet else {}
        wanted |= {"SecurityGroupIds": [kind.group]} if kind.group else {}
        started = asyncio.ensure_future(self._call("run_instances", **wanted))
        try:
            answer = await asyncio.shield(started)
        except asyncio.CancelledError:
            await finish(self._undo(started))
            raise
        return str(answer["Instances"][0]["InstanceId"])

    async def address(self, instance: str, reach: Reach) -> str:
        """Wait for the address of a running machine; `DriverError` if it ends before, or takes too long."""
        field = "PublicIpAddress" if reach == "public" else "PrivateIpAddress"

        async def look() -> str | None:
            answer = await self._call("describe_instances", InstanceIds=[instance])
            found = answer["Reservations"][0]["Instances"][0]
            state = found["State"]["Name"]
            if state not in _ALIVE:
                why = found.get("StateReason", {}).get("Message", "no reason given")
                raise DriverError(f"{instance} is {state}: {why}", driver="ec2", step="create")
            return found.get(field) if state == "running" else None

        found = await poll(look, deadline_s=RUNNING_TIMEOUT_S, longest_pause_s=_LONGEST_PAUSE_S)
        if found is None:
            what = f"{instance} has no {reach} address after {RUNNING_TIMEOUT_S:g} s"
            raise DriverError(what, driver="ec2", step="create")
        return found

    async def terminate(self, instance: str) -> None:
        """End it; the vendor frees the rest. Fine if it is gone."""
        await self._call("terminate_instances", InstanceIds=[instance])

    async def sweep(self) -> list[str]:
        """Terminate what dead owners of this machine left running; the ids."""
        filters = [
            {"Name": "tag-key", "Values": [OWNER_LABEL]},
            {"Name": "instance-state-name", "Values": _ALIVE},
        ]
        answer = await self._call("describe_instances", Filters=filters)
        orphans = [
            one["InstanceId"]
            for reservation in answer["Reservations"]
            for one in reservation["Instances"]
            if is_orphan(_tags(one).get(OWNER_LABEL, ""))
        ]
        if orphans:
            await self._call("terminate_instances", InstanceIds=orphans)
        return orphans

    async def _undo(self, started: asyncio.Future[Any]) -> None:
        try:
            answer = await started
        except (DriverError, Saturated, Unavailable):
            return
        await self.terminate(answer["Instances"][0]["InstanceId"])

    async def _call(self, name: str, **arguments: Any) -> Any:
        try:
            return await asyncio.to_thread(getattr(self._client, name), **arguments)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            kind = Saturated if code in _FULL else DriverError
            raise kind(f"{name}: {error}", driver="ec2") from error
        except BotoCoreError as error:  # no credentials, no connection
            raise Unavailable(f"{name}: {error}", driver="ec2") from error


def _tags(instance: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in instance.get("Tags", [])}
