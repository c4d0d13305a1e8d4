"""`dutyfree.blocking` against `dutyfree`: the same names with the same arguments, so that neither gets ahead."""

import inspect

import pytest

import dutyfree
from dutyfree import blocking, warm
from dutyfree.core import contract

PAIRS = [
    (contract.Substrate, blocking.Substrate),
    (contract.Sandbox, blocking.Sandbox),
    (contract.Process, blocking.Process),
    (contract.Shell, blocking.Shell),
    (contract.Forward, blocking.Forward),
    (contract.Snapshot, blocking.Snapshot),
    (warm.Pool, blocking.Pool),
    (warm.Lease, blocking.Lease),
]
FUNCTIONS = [
    (dutyfree.connect, blocking.connect),
    (dutyfree.verify, blocking.verify),
    (warm.open_pool, blocking.open_pool),
]
INSIDE = {
    "disown": "the process that forks calls it",
    "start of Pool": "`open_pool` has called it",
    "expire": "the pool's own clock",
    "stop_clock": "the pool's own clock",
    "lose": "the pool's own end",
    "reusable": "the pool asks it",
}
"""Public methods that are for other parts of the package, not for callers, and who they are for."""
BESIDE_A_LOOP = {"create_async", "reach", "twin"}
"""For callers that have an event loop after all: adapters."""
SYNCHRONOUS = {"__aenter__": "__enter__", "__aexit__": "__exit__", "__aiter__": "__iter__", "__anext__": "__next__"}


def surface(kind):
    """What callers may use, by its name in synchronous code."""
    names = {name for name in dir(kind) if not name.startswith("_")} | (SYNCHRONOUS.keys() & set(dir(kind)))
    return {
        SYNCHRONOUS.get(name, name): inspect.getattr_static(kind, name)
        for name in names
        if name not in INSIDE and f"{name} of {kind.__name__}" not in INSIDE
    }


def arguments(function):
    """Names, kinds, defaults and types. Values are the same on both sides, and so are the names of resources."""
    return [
        (one.name, one.kind, one.default, str(one.annotation).replace("warm.", ""))
        for one in inspect.signature(function).parameters.values()
    ]


@pytest.mark.parametrize(("ours", "theirs"), PAIRS, ids=lambda kind: kind.__module__ + "." + kind.__name__)
def test_every_method_has_its_twin(ours, theirs):
    expected = surface(ours)
    given = {name for name in dir(theirs) if not name.startswith("_") and name not in BESIDE_A_LOOP} | (
        set(SYNCHRONOUS.values()) & set(dir(theirs))
    )
    assert given == expected.keys() | (inspect.get_annotations(ours).keys() & given)
    for name, method in expected.items():
        # A lease's own methods pass their options on, so its base class says what they are.
        twin = getattr(contract.Sandbox, name, method) if ours is warm.Lease else method
        if inspect.isfunction(twin) and not name.startswith("__"):
            assert arguments(getattr(theirs, name)) == arguments(twin), name


@pytest.mark.parametrize(("ours", "theirs"), FUNCTIONS, ids=lambda function: function.__name__)
def test_every_function_has_its_twin(ours, theirs):
    assert arguments(theirs) == arguments(ours)


def test_every_public_name_is_there():
    assert set(dutyfree.__all__) <= set(blocking.__all__)
    assert all(hasattr(blocking, name) for name in blocking.__all__)


def test_attributes_of_what_is_handed_out_are_the_same():
    with blocking.connect("warm:host") as pool, pool.create() as lease:
        for ours, theirs in ((contract.Substrate, pool), (contract.Sandbox, lease)):
            for name in (one for one in ours.__annotations__ if not one.startswith("_")):
                assert hasattr(theirs, name), name
        assert (lease.origin, lease.owner, lease.key, lease.ttl_s) == ("created", "", None, None)


def test_a_pool_is_a_pool_without_a_loop():
    spec = dutyfree.Spec(network="host")
    with blocking.open_pool("host", targets=[(spec, 1)]) as pool:
        pool.settled()
        with pool.claim(spec, owner="me", ttl_s=60, key="one") as lease:
            assert (lease.owner, lease.key, lease.origin) == ("me", "one", "idle")
            lease.renew(30)
            assert lease.run("echo $((6 * 7))").text() == "42\n"
            assert [one.id for one in pool.leases()] == [lease.id]
            assert (pool.metrics().leased, pool.metrics().hits) == (1, 1)
        pool.set_targets([])
        assert pool.metrics().leased == 0


def test_a_pool_opens_over_a_connection_that_is_there():
    with blocking.open_pool(blocking.connect("host")) as pool, pool.create() as lease:
        assert (pool.name, lease.run(["true"]).ok) == ("warm:host", True)


def test_what_is_closed_late_is_closed():
    substrate = blocking.connect("host")
    box = substrate.create()
    process, shell = box.start(["cat"], stdin=None), box.shell()
    substrate.close()
    for ended in (process.__exit__, shell.close, box.destroy, substrate.close):
        ended()
    with pytest.raises(dutyfree.Misuse, match="closed"):
        box.run(["true"])
