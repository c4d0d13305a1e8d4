"""What is special to claims: the death of their client, the controller's own clock, warm pools, the template's say."""

import asyncio
import os
import signal
import subprocess
import sys

import pytest
from doomed import client, ends, kill, sleepers, until
from test_kubernetes import api

from dutyfree.core.errors import Misuse, SandboxLost, Unsupported
from dutyfree.core.spec import Limits, Spec
from dutyfree.driver.owner import OWNER_LABEL, owner_mark
from dutyfree.substrates.claim.claim import TTL_S, Claim
from dutyfree.substrates.claim.group import CLAIMS, POOLS
from dutyfree.substrates.claim.template import Pool, find_template
from dutyfree.substrates.kubernetes.owner import Owner
from dutyfree.substrates.registry import connect

pytestmark = pytest.mark.slow("a Kubernetes cluster")

BENCH = Spec(image="bench")


def names(kubeconfig, mark, kind=CLAIMS):
    """Of an owner's claims or pools."""

    async def ask():
        async with api(kubeconfig) as cluster:
            selector = [("labelSelector", f"{OWNER_LABEL}={mark}")]
            reply = await cluster.call("GET", cluster.place(kind[0], group=kind[1]), query=selector)
            return [one["metadata"]["name"] for one in reply.body["items"]]

    return asyncio.run(ask())


def claimed_pods(kubeconfig):
    """All pods of the namespace: one that was started cold has its claim's name."""

    async def ask():
        async with api(kubeconfig) as cluster:
            reply = await cluster.call("GET", cluster.place("pods"))
            return [one["metadata"]["name"] for one in reply.body["items"]]

    return asyncio.run(ask())


def come_and_go(kubeconfig):
    """Connecting sweeps."""

    async def main():
        async with connect("kubernetes-claim", kubeconfig=kubeconfig, template="bench"):
            pass

    asyncio.run(main())


@pytest.mark.parametrize("dispatch", ["agent", "api"])
def test_kill_9_of_the_client_ends_its_commands_and_the_next_one_removes_claim_and_pod(claims, dispatch):
    mark = f"86402.{1 if dispatch == 'api' else 2}"
    with client(f"kubernetes-claim?kubeconfig={claims}&template=bench&dispatch={dispatch}", mark) as (process, name):
        until(lambda: sleepers(mark))
        (pid,) = sleepers(mark)
        owner = owner_mark(process.pid)
        assert name in names(claims, owner)
        assert name in claimed_pods(claims)
        kill(process)
        assert ends(pid)
        come_and_go(claims)
        until(lambda: name not in claimed_pods(claims))
        assert names(claims, owner) == []
        assert names(claims, owner, POOLS) == []


def test_kill_9_of_the_client_while_it_claims_leaves_no_claim(claims):
    script = (
        "import asyncio, sys; from dutyfree.core.spec import Spec; from dutyfree.substrates.registry import connect\n"
        "async def main(path):\n"
        "    async with connect('kubernetes-claim', kubeconfig=path, template='bench') as substrate:\n"
        "        async with asyncio.TaskGroup() as group:\n"
        "            for _ in range(3): group.create_task(substrate._create(Spec(image='bench')))\n"
        "asyncio.run(main(sys.argv[1]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, claims])
    mark = owner_mark(process.pid)
    try:
        until(lambda: len(names(claims, mark)) > 1 or process.poll() is not None)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    come_and_go(claims)
    until(lambda: names(claims, mark) == [] and claimed_pods(claims) == [])
    assert names(claims, mark, POOLS) == []


def test_a_claim_that_nobody_renews_is_ended_by_the_controller(claims):
    async def main():
        async with api(claims) as opened:
            owner = Owner(opened)
            await owner._make()
            pool = Pool(client=opened, name=f"{owner.name}-pool", own=True)
            claim = Claim(opened, f"{owner.name}-claim", "sandbox", end_s=opened.now_s() + 1)
            try:
                await pool.create(await find_template(opened, "bench"), 0, owner)
                await claim.create(pool.name, owner)
                path = opened.place(CLAIMS[0], group=CLAIMS[1])
                async for event in opened.follow(path, claim.name):
                    if event["type"] == "DELETED":
                        return True
            finally:
                await claim.remove()
                await pool.remove()
                await owner.release()

    assert asyncio.run(main())


def test_a_claim_is_put_off_while_its_owner_lives(claims):
    async def main():
        async with (
            connect("kubernetes-claim", kubeconfig=claims, template="bench") as substrate,
            substrate.create(BENCH) as box,
            api(claims) as opened,
        ):
            path = opened.place(CLAIMS[0], box.id, CLAIMS[1])
            before = (await opened.call("GET", path)).body["spec"]["lifecycle"]
            substrate._client._ahead_s += TTL_S  # as if that had passed
            await substrate._renew()
            return before, (await opened.call("GET", path)).body["spec"]["lifecycle"]

    before, after = asyncio.run(main())
    assert before["shutdownPolicy"] == after["shutdownPolicy"] == "Delete"
    assert before["shutdownTime"] < after["shutdownTime"]


def test_a_closed_substrate_leaves_neither_claims_nor_pods_nor_a_pool(claims):
    async def main():
        async with connect("kubernetes-claim", kubeconfig=claims, template="bench", warm="1") as substrate:
            box = await substrate.create(BENCH)
            return box.id

    name = asyncio.run(main())
    assert names(claims, owner_mark()) == []
    assert names(claims, owner_mark(), POOLS) == []
    assert name not in claimed_pods(claims)


@pytest.mark.parametrize("ready", ["poll", "wait"])
@pytest.mark.parametrize("dispatch", ["agent", "api"])
def test_the_wait_for_the_controller_is_a_span_of_its_own(claims, dispatch, ready):
    async def main():
        options = {"kubeconfig": claims, "template": "bench", "dispatch": dispatch, "ready": ready}
        async with connect("kubernetes-claim", **options) as substrate, substrate.create(BENCH) as box:
            return (await box.run(["echo", "ok"])).stdout, box.timeline

    stdout, timeline = asyncio.run(main())
    assert stdout == b"ok\n"
    create, wait, ready_span = timeline.spans[:3]
    assert [create.name, wait.name, ready_span.name] == ["create", "orchestration", "ready"]
    assert create.end_ns == wait.start_ns
    assert wait.end_ns == ready_span.start_ns


def test_a_warm_pool_hands_out_a_pod_that_was_there_before(claims):
    async def main():
        async with connect("kubernetes-claim", kubeconfig=claims, template="bench", warm="2") as substrate:
            async with api(claims) as opened:
                ready = await opened.call("GET", opened.place(POOLS[0], substrate._pool.name, POOLS[1]))
            box = await substrate.create(BENCH)
            (claim,) = substrate._claims
            return ready.body["status"]["readyReplicas"], claim.pod.name.startswith(substrate._pool.name), box.id

    assert asyncio.run(main())[:2] == (2, True)


def test_a_claim_that_somebody_deletes_is_lost_and_says_so(claims):
    async def main():
        async with (
            connect("kubernetes-claim", kubeconfig=claims, template="bench") as substrate,
            substrate.create(BENCH) as box,
        ):
            running = asyncio.ensure_future(box.run(["sleep", "60"]))
            await box.run(["true"])
            async with api(claims) as opened:
                await Claim(opened, box.id, "sandbox").remove()
            with pytest.raises(SandboxLost, match="pod"):
                await running

    asyncio.run(main())


def test_what_is_the_templates_cannot_be_asked_of_a_claim(claims):
    async def main():
        async with connect("kubernetes-claim", kubeconfig=claims) as substrate:
            with pytest.raises(Unsupported, match="template"):
                await substrate.create(Spec(image="bench", limits=Limits(cpus=1)))
            with pytest.raises(Misuse, match="image: template 'bench' runs"):
                await substrate.create(Spec(image="python:3.12"))
        with pytest.raises(Misuse, match=r"template: .* 'nothing'"):
            await connect("kubernetes-claim", kubeconfig=claims, template="nothing")
        with pytest.raises(Misuse, match=r"pool: .* 'nothing'"):
            await connect("kubernetes-claim", kubeconfig=claims, pool="nothing")

    asyncio.run(main())
    assert names(claims, owner_mark()) == []
