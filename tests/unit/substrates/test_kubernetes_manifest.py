"""Pods without a cluster: what is asked for, and what its answers mean."""

import pytest

pytest.importorskip("kubernetes_asyncio", reason="enable: pip install 'dutyfree[kubernetes]'")

from dutyfree.core.errors import DriverError, Misuse
from dutyfree.core.spec import Limits, Spec
from dutyfree.substrates.kubernetes.manifest import pod_manifest
from dutyfree.substrates.kubernetes.pod import _defaults
from dutyfree.substrates.kubernetes.state import check_alive, end_of, is_ready, is_unschedulable
from dutyfree.substrates.kubernetes.stream import _status


def manifest(spec, profile="default"):
    lease = {"name": "lease", "uid": "1"}
    return pod_manifest(spec, name="pod", image="image", owner="a.b.c.d", lease=lease, profile=profile)


def pod(phase="Pending", conditions=(), **state):
    statuses = [{"state": state}] if state else []
    status = {"phase": phase, "conditions": list(conditions), "containerStatuses": statuses}
    return {"spec": {"containers": [{"image": "some"}]}, "status": status}


def test_limits_are_bounds_and_reserve_little():
    (container,) = manifest(Spec(limits=Limits(cpus=1.5, memory_bytes=1 << 30)))["spec"]["containers"]
    assert container["resources"]["limits"] == {"cpu": "1500m", "memory": str(1 << 30)}
    assert container["resources"]["requests"] == {"cpu": "10m", "memory": str(16 << 20)}


def test_a_limit_below_the_usual_reservation_reserves_no_more_than_itself():
    (container,) = manifest(Spec(limits=Limits(cpus=0.01, memory_bytes=4 << 20)))["spec"]["containers"]
    assert container["resources"]["requests"] == container["resources"]["limits"]


def test_a_lifetime_is_the_nodes_to_end_as_well():
    assert manifest(Spec(lifetime_s=10.5))["spec"]["activeDeadlineSeconds"] > 11
    assert "activeDeadlineSeconds" not in manifest(Spec())["spec"]


def test_no_profile_gives_a_pod_the_clusters_token():
    for profile in ("default", "hardened"):
        assert manifest(Spec(), profile)["spec"]["automountServiceAccountToken"] is False


def test_an_exit_code_is_told_apart_from_a_command_that_never_started():
    failed = b'{"status": "Failure", "details": {"causes": [{"reason": "ExitCode", "message": "3"}]}}'
    assert _status(b'{"status": "Success"}').exit_code == 0
    assert _status(failed).exit_code == 3
    assert _status(b'{"status": "Failure", "message": "container not found"}').exit_code is None
    assert _status(b"no json").message == "no json"


def test_a_greeting_tells_the_images_place_and_environment_without_the_clusters_own():
    found = _defaults(b"/repo\1PATH=/bin\1A=1\0022\1KUBERNETES_PORT=x\1HOSTNAME=pod\1HOME=/root\1broken\n")
    assert found.cwd == "/repo"
    assert found.env == {"PATH": "/bin", "A": "1\n2"}
    assert _defaults(b"/\1A=b\n").cwd is None


def test_an_image_that_cannot_be_fetched_is_the_callers_mistake():
    with pytest.raises(Misuse, match="image"):
        check_alive(pod(waiting={"reason": "ErrImagePull", "message": "no such host"}))


def test_a_container_that_cannot_start_says_why():
    with pytest.raises(DriverError, match="no such device"):
        check_alive(pod(waiting={"reason": "CreateContainerError", "message": "no such device"}))
    with pytest.raises(DriverError, match="OOMKilled"):
        check_alive(pod("Failed", terminated={"reason": "OOMKilled"}))


def test_a_pod_on_its_way_is_neither_ready_nor_wrong():
    waiting = pod(waiting={"reason": "ContainerCreating"})
    check_alive(waiting)
    assert not is_ready(waiting)
    assert end_of(waiting) is None
    full = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/1 nodes"}
    assert is_unschedulable(pod(conditions=[full])) == "0/1 nodes"
