"""What is special to pods: the death of their client, orphans, the hardened profile, the two ways to be ready."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from contextlib import asynccontextmanager

import pytest
from doomed import client, ends, kill, sleepers, until
from support.hardened import check_hardened

from dutyfree.core.errors import Misuse, SandboxLost, Unavailable, Unsupported
from dutyfree.core.spec import Limits, Spec
from dutyfree.driver.owner import OWNER_LABEL, owner_mark
from dutyfree.substrates.kubernetes.client import open_client
from dutyfree.substrates.kubernetes.manifest import LEASE_LABEL, pod_manifest
from dutyfree.substrates.kubernetes.owner import LEASE_S, Owner
from dutyfree.substrates.kubernetes.pod import Pod
from dutyfree.substrates.registry import connect

pytestmark = pytest.mark.slow("a Kubernetes cluster")

BENCH = Spec(image="bench")


@asynccontextmanager
async def api(kubeconfig):
    opened = await open_client(kubeconfig, None, None)
    try:
        yield opened
    finally:
        await opened.close()


def pods(kubeconfig, mark=None):
    """Names of the pods of an owner, or of all."""

    async def ask():
        async with api(kubeconfig) as cluster:
            label = f"{OWNER_LABEL}={mark}" if mark else OWNER_LABEL
            reply = await cluster.call("GET", cluster.place("pods"), query=[("labelSelector", label)])
            return [pod["metadata"]["name"] for pod in reply.body["items"]]

    return asyncio.run(ask())


def come_and_go(kubeconfig):
    """Connecting sweeps."""

    async def main():
        async with connect("kubernetes", kubeconfig=kubeconfig):
            pass

    asyncio.run(main())


@pytest.mark.parametrize("dispatch", ["agent", "api"])
def test_kill_9_of_the_client_ends_its_commands_and_the_next_one_removes_the_pod(cluster, dispatch):
    mark = f"86401.{1 if dispatch == 'api' else 2}"
    with client(f"kubernetes?kubeconfig={cluster}&dispatch={dispatch}", mark) as (process, name):
        until(lambda: sleepers(mark))
        (pid,) = sleepers(mark)
        assert name in pods(cluster)
        kill(process)
        assert ends(pid)
        come_and_go(cluster)
        assert name not in pods(cluster)


@pytest.mark.parametrize("turn", range(3))
def test_kill_9_of_the_client_while_it_creates_leaves_no_pod(cluster, turn):
    script = (
        "import asyncio, sys; from dutyfree.core.spec import Spec; from dutyfree.substrates.registry import connect\n"
        "async def main(path):\n"
        "    async with connect('kubernetes', kubeconfig=path) as substrate:\n"
        "        async with asyncio.TaskGroup() as group:\n"
        "            for _ in range(3): group.create_task(substrate._create(Spec(image='bench')))\n"
        "asyncio.run(main(sys.argv[1]))\n"
    )
    process = subprocess.Popen([sys.executable, "-c", script, cluster])
    mark = owner_mark(process.pid)
    try:
        until(lambda: len(pods(cluster, mark)) > turn or process.poll() is not None)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    come_and_go(cluster)
    assert pods(cluster, mark) == []


def test_pods_of_an_owner_elsewhere_go_when_its_lease_is_over_and_not_before(cluster):
    async def main():
        async with api(cluster) as opened:
            for name, age_s in (("dutyfree-foreign-late", LEASE_S + 30), ("dutyfree-foreign-alive", 1)):
                owner = Owner(opened)
                owner.mark, owner.name = "elsewhere.1.2.3", name
                opened._ahead_s -= age_s
                await owner._make()
                opened._ahead_s += age_s
                manifest = pod_manifest(
                    BENCH,
                    name=name,
                    image="dutyfree/none:1",
                    owner=owner.mark,
                    lease=owner.reference,
                    profile="default",
                )
                await Pod(opened, name).create(manifest)
            try:
                async with connect("kubernetes", kubeconfig=cluster):
                    found = await opened.call("GET", opened.place("pods"), query=[("labelSelector", LEASE_LABEL)])
                    names = {pod["metadata"]["name"] for pod in found.body["items"]}
                    return "dutyfree-foreign-late" in names, "dutyfree-foreign-alive" in names
            finally:
                await Owner(opened)._drop("dutyfree-foreign-alive")

    assert asyncio.run(main()) == (False, True)


def test_an_owner_of_this_machine_that_lives_is_not_swept_however_late_it_renews(cluster):
    async def main():
        async with api(cluster) as opened:
            late = Owner(opened)
            opened._ahead_s -= LEASE_S + 30
            await late._make()
            opened._ahead_s += LEASE_S + 30
            try:
                return late.name in await Owner(opened).sweep()
            finally:
                await late.release()

    assert not asyncio.run(main())


def test_a_closed_substrate_leaves_neither_pods_nor_a_lease(cluster):
    async def main():
        async with connect("kubernetes", kubeconfig=cluster) as substrate:
            await substrate.create(BENCH)
            lease = substrate._owner.name
        async with api(cluster) as opened:
            return (await opened.call("GET", opened.place("leases", lease, "apis/coordination.k8s.io/v1"))).status

    assert asyncio.run(main()) == 404
    assert pods(cluster, owner_mark()) == []


@pytest.mark.parametrize("ready", ["poll", "wait"])
@pytest.mark.parametrize("dispatch", ["agent", "api"])
def test_both_ways_to_be_ready_give_a_sandbox_that_runs_at_once(cluster, dispatch, ready):
    async def main():
        async with (
            connect("kubernetes", kubeconfig=cluster, dispatch=dispatch, ready=ready) as substrate,
            substrate.create(BENCH) as box,
        ):
            spans = {span.name for span in box.timeline.spans}
            return (await box.run(["echo", "ok"])).stdout, spans

    stdout, spans = asyncio.run(main())
    assert stdout == b"ok\n"
    assert {"create", "ready"} <= spans


def test_a_pod_that_somebody_deletes_is_lost_and_says_so(cluster):
    async def main():
        async with connect("kubernetes", kubeconfig=cluster) as substrate, substrate.create(BENCH) as box:
            running = asyncio.ensure_future(box.run(["sleep", "60"]))
            await box.run(["true"])
            async with api(cluster) as opened:
                await Pod(opened, box.id).remove()
            with pytest.raises(SandboxLost, match="pod"):
                await running

    asyncio.run(main())


def test_the_hardened_profile_has_no_way_to_write_the_root_or_to_gain_privileges(cluster):
    check_hardened(lambda: connect("kubernetes", kubeconfig=cluster, profile="hardened"))


def test_a_pod_has_no_token_of_the_cluster_and_hears_nothing_of_its_services(cluster):
    async def main():
        async with connect("kubernetes", kubeconfig=cluster) as substrate, substrate.create(BENCH) as box:
            return await box.run("ls /var/run/secrets; env | grep KUBERNETES; ls -A / | grep dutyfree; echo end")

    assert asyncio.run(main()).stdout == b"end\n"


def test_an_image_that_no_node_has_is_misuse(cluster):
    async def main():
        async with connect("kubernetes", kubeconfig=cluster) as substrate:
            with pytest.raises(Misuse, match="image"):
                await substrate.create(Spec(image="localhost:1/no/such:1"))
            with pytest.raises(Unsupported, match="pids"):
                await substrate.create(Spec(image="bench", limits=Limits(pids=64)))

    asyncio.run(main())
    assert pods(cluster, owner_mark()) == []


def test_a_cluster_that_is_not_there_is_unavailable_and_options_are_checked(tmp_path):
    pytest.importorskip("kubernetes_asyncio", reason="enable: pip install 'dutyfree[kubernetes]'")
    nowhere = tmp_path / "kubeconfig"
    nowhere.write_text(
        json.dumps(
            {
                "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "u", "user": {"token": "t"}}],
                "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
                "current-context": "x",
            }
        )
    )

    async def main():
        with pytest.raises(Unavailable, match="make cluster"):
            await connect("kubernetes", kubeconfig="/no/such/file")
        with pytest.raises(Unavailable, match=r"127\.0\.0\.1:1 does not answer"):
            await connect("kubernetes", kubeconfig=str(nowhere))
        with pytest.raises(Unavailable, match="context"):
            await connect("kubernetes", kubeconfig=str(nowhere), context="another")
        with pytest.raises(Misuse, match="ready"):
            await connect("kubernetes", ready="soon")
        with pytest.raises(Misuse, match="colour"):
            await connect("kubernetes", colour="red")

    asyncio.run(main())
