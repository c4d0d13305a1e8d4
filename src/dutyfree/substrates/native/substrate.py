"""The native substrate: orders sandboxes from the spawner and reaches them through their agent's stream."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

from dutyfree.core.contract import SNAPSHOT_PREFIX, Capabilities, Sandbox, Snapshot, Substrate
from dutyfree.core.egress import Egress
from dutyfree.core.errors import DriverError, DutyfreeError, Misuse, SandboxLost, Saturated, Unsupported
from dutyfree.core.home import check_loop
from dutyfree.core.pending import Pending, finish
from dutyfree.core.spec import ISOLATION_ORDER, Limits, Spec
from dutyfree.core.timeline import Timeline, now_ns
from dutyfree.guest.egress import proxy_env
from dutyfree.guest.link import Link
from dutyfree.image.resolve import Image, remembered, resolve
from dutyfree.image.store import Store
from dutyfree.substrates.native.disk import scratch_image
from dutyfree.substrates.native.machine import Machine
from dutyfree.substrates.native.plan import Plan
from dutyfree.substrates.native.sandbox import NativeSandbox
from dutyfree.substrates.native.spawner import ENDED_BY_ITSELF, FULL, Order, Spawner
from dutyfree.substrates.native.state import NativeSnapshot, State, States
from dutyfree.substrates.native.verify import Depth, Verifier
from dutyfree.substrates.scratch import scratch_bytes, scratch_files

HELLO_TIMEOUT_S = 30.0
"""A sandbox that has not greeted by then is given up; milliseconds are usual, seconds mean a machine in distress."""

PLAN_AGE_NS = 1_000_000_000
"""How long an image that was looked at counts as unchanged."""
MAX_PLANS = 1024

NAME_FILES = ("/etc/resolv.conf", "/etc/hosts")
"""What a sandbox on the host's network gets of the host's /etc, over the image's own."""

_CPU_PERIOD_US = 100_000
_AGENT = 1
"""The agent counts as a process too: what the caller may have comes on top."""


def default_limits() -> Limits:
    """What applies where the caller says nothing: enough for builds and tests, not enough to take the machine along."""
    ram_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    memory_bytes = min(4 << 30, ram_bytes // 2)
    return Limits(memory_bytes=memory_bytes, pids=1024, disk_bytes=memory_bytes, files=1_000_000)


def native_capabilities(spawner: Machine) -> Capabilities:
    """What this machine lets a native sandbox do."""
    limits = {"pids", "disk_bytes", "files"}
    notes: dict[str, str] = {}
    if spawner.cgroup == "none":
        notes["limits"] = f"memory_bytes and cpus are not enforced: {spawner.lost}"
    else:
        limits |= {"memory_bytes", "cpus"}
    if not spawner.idmap:
        notes["users"] = notes["storages"] = "needs root: an ordinary user has one id to map"
        for ability in ("snapshot", "fork", "reset"):
            notes[ability] = "needs root: an ordinary user may not look into the sandbox's first process"
    return Capabilities(
        isolation="namespace",
        dispatch="agent",
        limits=frozenset(limits),
        networks=frozenset({"none", "host"}),
        egress=True,
        storages=frozenset({"memory", "disk"} if spawner.idmap else {"memory"}),
        users=spawner.idmap,
        process_tree=True,
        stream=True,
        terminal=True,
        shell=True,
        forward=True,
        snapshot=spawner.idmap,
        fork=spawner.idmap,
        reset=spawner.idmap,
        notes=notes,
    )


class NativeSubstrate(Substrate):
    """Hands out sandboxes made by one spawner; they live as long as it."""

    name = "native"
    _chooses_network = True  # a spec without one has none

    def __init__(self, spawner: Spawner, store: Store, version: str, *, verify: Depth = "quick") -> None:
        self.version = version
        self.capabilities = native_capabilities(spawner)
        self._spawner = spawner
        self._store = store
        self._defaults = default_limits()
        self._boxes: set[NativeSandbox] = set()
        self._states = States(spawner, store, removed=self._removed, given_up=self._given_up)
        self._verifier = Verifier(spawner, verify, self._witness)
        self._heirs: dict[Sandbox, State] = {}
        """Forks, and the state that each began with."""
        self._plans: dict[tuple[object, ...], Plan] = {}
        self._resolving: dict[str, asyncio.Task[Image]] = {}
        self._scratching: set[asyncio.Task[int]] = set()
        self._last_id = 0

    async def _create(self, spec: Spec) -> Sandbox:
        start_ns = now_ns()
        plan = await self._plan(spec)
        if any(layer.users == 0 for layer in plan.saved):
            raise Misuse(f"{spec.image!r} was removed", field="image", driver="native")
        timeline = Timeline()
        box = await self._boot(spec, plan, timeline, start_ns)
        await self._join_network(box)
        timeline.add("ready", timeline.spans[0].end_ns, now_ns())
        return box

    async def image_key(self, image: str) -> str:
        """The key of what the name stands for now; a snapshot's own name, as it never changes."""
        if image.startswith(SNAPSHOT_PREFIX) and await self.holds(image):
            return image
        return (remembered(image, self._store) or await self._resolve(image)).key

    async def image_bytes(self, image: str) -> int | None:
        """As the store has it; the machine's own programs have no size of their own."""
        if image == "host":
            return None
        found = self._store.manifest((remembered(image, self._store) or await self._resolve(image)).key)
        return found.size_bytes if found else None

    async def close(self) -> None:
        """End the spawner, which ends every sandbox."""
        check_loop(self._home)
        for box in list(self._boxes):
            await finish(box.destroy())
        await asyncio.gather(*self._resolving.values(), *self._scratching, return_exceptions=True)
        await self._verifier.close()
        self._states.close()
        await self._spawner.close()
        self._store.close()

    async def _plan(self, spec: Spec) -> Plan:
        """What is the same for all sandboxes of one kind, worked out once."""
        kind = (spec.image, spec.limits, spec.network, spec.storage, spec.lifetime_s, spec.isolation, spec.user)
        plan = self._plans.get(kind)
        if plan is not None and now_ns() - plan.made_ns < PLAN_AGE_NS:
            return plan
        self._check(spec)
        self._spawner.trim(self._layers_in_use)
        state = self._states.find(spec.image)
        saved = state.saved if state else ()
        image = state.image if state else remembered(spec.image, self._store)
        image = image or await self._resolve(spec.image)
        order = await self._order(spec, image)
        order = replace(order, layers=[*(layer.number for layer in saved), *order.layers])
        disk = spec.storage == "disk"
        plan = Plan(image, saved, order, order.pack(disk=disk), disk, now_ns())
        if len(self._plans) >= MAX_PLANS:
            self._plans.clear()
        self._plans[kind] = plan
        return plan

    def _layers_in_use(self) -> set[int]:
        plans = [*self._plans.values(), *(box.plan for box in self._boxes)]
        return {layer for plan in plans for layer in plan.order.used()}

    async def _resolve(self, name: str) -> Image:
        """In a thread, once for all who ask meanwhile. A thread cannot be cancelled, so `close` waits for it."""
        task = self._resolving.get(name)
        if task is None:
            task = self._resolving[name] = asyncio.ensure_future(asyncio.to_thread(resolve, name, self._store))
            task.add_done_callback(lambda _: self._resolving.pop(name))
        try:
            return await asyncio.shield(task)
        except DutyfreeError as error:  # images know no driver
            raise error.located(driver=self.name).with_traceback(error.__traceback__) from error.__cause__

    def _check(self, spec: Spec) -> None:
        abilities = self.capabilities
        if spec.isolation and ISOLATION_ORDER.index(spec.isolation) > ISOLATION_ORDER.index(abilities.isolation):
            message = f"offers isolation {abilities.isolation!r}, not {spec.isolation!r}"
            raise Unsupported(message, driver="native")
        for name in spec.limits.given():
            if name not in abilities.limits:
                raise Unsupported(f"limits.{name}: {abilities.notes['limits']}", driver="native")
        if spec.storage not in abilities.storages:
            raise Unsupported(f"storage {spec.storage!r}: {abilities.notes['storages']}", driver="native")
        if spec.user is not None and not abilities.users and spec.user not in ("root", "0"):
            raise Unsupported(f"user {spec.user!r}: {abilities.notes['users']}", driver="native")

    async def _order(self, spec: Spec, image: Image) -> Order:
        given, default = spec.limits, self._defaults
        memory_bytes = given.memory_bytes or default.memory_bytes or 0
        disk_bytes, files = default.disk_bytes or 0, default.files or 0
        if spec.storage == "memory":
            disk_bytes, files = scratch_bytes(memory_bytes), min(files, scratch_files(memory_bytes))
        return Order(
            memory_bytes=memory_bytes,
            cpu_quota_us=int(given.cpus * _CPU_PERIOD_US) if given.cpus else 0,
            disk_bytes=given.disk_bytes or disk_bytes,
            files=given.files or files,
            lifetime_ns=int(spec.lifetime_s * 1e9) if spec.lifetime_s else 0,
            pids=(given.pids or default.pids or 0) + _AGENT,
            host_network=spec.network == "host",
            settled=all(path.is_relative_to(self._store.root) for path in image.layers),
            layers=[await self._spawner.layer(path) for path in image.layers],
            binds=[(await self._spawner.layer(path, host=True), target) for path, target in image.binds],
        )

    async def _boot(self, spec: Spec, plan: Plan, timeline: Timeline, start_ns: int) -> NativeSandbox:
        self._last_id += 1
        name = f"native-{os.getpid()}-{self._last_id}"
        self._states.hold(plan.saved)
        try:
            if self._verifier.depth == "full":
                await self._verifier.learn(plan)
            tag, link = await self._begin(spec, plan, plan.packet, name)
            # As in every driver: what provides it has taken the order; waiting for the greeting is readiness.
            timeline.add("create", start_ns, now_ns())
            try:
                image = plan.image
                box = NativeSandbox(
                    tag=tag, plan=plan, keeper=self, id=name, spec=spec, capabilities=self.capabilities,
                    timeline=timeline, link=link, env={**image.env, **_network_env(spec)}, cwd=image.cwd, user=image.user,
                )  # fmt: skip
                await self._greet(link, tag)
            except BaseException:
                link.close()
                await finish(self._spawner.destroy(tag))
                raise
        except BaseException:
            self._states.drop(plan.saved)
            raise
        self._boxes.add(box)
        if image.name.startswith(SNAPSHOT_PREFIX):
            self._store.borrow(image.key)
        return box

    async def _begin(
        self, spec: Spec, plan: Plan, packet: bytes, name: str, *, reserved: bool = True
    ) -> tuple[int, Link]:
        """Order a sandbox. From here to its greeting everything runs while it is being born."""
        tag, stream = await self._order_one(spec, plan, packet, reserved)
        link = Link.attach(stream, sandbox=name)
        link.cause = lambda: self._cause(spec, tag)
        return tag, link

    async def _order_one(self, spec: Spec, plan: Plan, packet: bytes, reserved: bool) -> tuple[int, socket.socket]:
        try:
            ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        except OSError as error:
            raise Saturated(f"cannot open a stream: {error.strerror}", driver="native", step="create") from error
        disk_fd = None
        try:
            if spec.storage == "disk":
                disk_fd = await self._scratch(plan.order, reserved)
            return self._spawner.create(packet, theirs.fileno(), disk_fd), ours
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
            if disk_fd is not None:
                os.close(disk_fd)

    async def _scratch(self, order: Order, reserved: bool) -> int:
        """A disk image's descriptor. Cancelled: what the thread opens is closed when it has; `close` waits for that."""
        place = self._store.root / "disks"
        making = asyncio.to_thread(scratch_image, place, order.disk_bytes, order.files, reserved=reserved)
        task = asyncio.ensure_future(making)
        self._scratching.add(task)
        task.add_done_callback(self._scratching.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_close_result)
            raise
        except OSError as error:
            failure = Saturated if error.errno in FULL else DriverError
            raise failure(f"cannot make a disk in {place}: {error.strerror}", driver="native", step="create") from error

    async def _greet(self, link: Link, tag: int) -> None:
        try:
            await link.hello(HELLO_TIMEOUT_S)
        except SandboxLost as error:
            failure = self._spawner.failure(tag)
            if failure.done():
                raise failure.result() from None
            raise DriverError(error.message, driver="native", step="create") from error

    async def _join_network(self, box: NativeSandbox) -> None:
        try:
            await self._open_network(box)
        except BaseException:
            await finish(box.destroy())
            raise

    async def _open_network(self, box: NativeSandbox) -> None:
        """What the network policy needs inside: the machine's names, or the way out."""
        if isinstance(box.spec.network, Egress):
            await box.allow_egress(box.spec.network)
        elif box.spec.network == "host":
            for path in NAME_FILES:
                if Path(path).is_file():
                    await box.write(path, Path(path).read_bytes(), user="root")

    async def _cause(self, spec: Spec, tag: int) -> str:
        reason = await self._spawner.end_of(tag)
        if reason == ENDED_BY_ITSELF and spec.idle_s is not None:
            return f"nothing was asked of it for {spec.idle_s:g} s"
        return reason

    # -- what sandboxes ask for: see `Keeper` -------------------------------------------------------------------------

    async def save(self, box: NativeSandbox, key: str | None, spec: Spec) -> Snapshot:
        """A snapshot of what the sandbox has written."""
        return NativeSnapshot(self._states, await self._states.save(box.tag, box.plan.started_as(spec), key))

    async def fork(self, box: NativeSandbox, n: int) -> Sequence[Pending[Sandbox]]:
        """One copy of what the sandbox has written, shared by all."""
        state = await self._states.save(box.tag, box.plan.started_as(box.spec), None, heirs=n)
        spec = replace(box.spec, image=state.name)
        return [Pending(self._create_heir(spec, state), _destroy) for _ in range(n)]

    async def renew(self, box: NativeSandbox) -> None:
        """Order another sandbox of the plan, end the one before, and show that the new one is fresh."""
        await box.leave("it was reset")
        ending = asyncio.ensure_future(self._spawner.destroy(box.tag))
        try:
            if box.plan.disk:
                await ending  # the room of its disk is the new one's
            lifetime_ns = box.plan.order.lifetime_ns - (now_ns() - box.made_ns)
            tag, link = await self._begin(box.spec, box.plan, box.plan.for_lifetime(lifetime_ns), box.id)
            try:
                await self._greet(link, tag)
                await self._verifier.check(tag, box.plan)
                await ending
                box.adopt(link, tag)
                await self._open_network(box)
            except BaseException:
                link.close("it was reset")
                await self._spawner.destroy(tag)
                raise
        finally:
            await ending

    async def release(self, box: NativeSandbox) -> None:
        """End what is behind the sandbox."""
        try:
            await self._spawner.destroy(box.tag)
        finally:
            await self._disown(box)

    async def holds(self, image: str) -> bool:
        """Whether a sandbox could start from it at once."""
        return await self._states.holds(image)

    async def _create_heir(self, spec: Spec, state: State) -> Sandbox:
        try:
            box = await self._create(spec)
        except BaseException:
            await finish(self._states.inherit(state))
            raise
        self._heirs[box] = state
        return box

    async def remove_snapshot(self, key: str) -> None:
        """Give up a state, in memory or in the store."""
        await finish(self._states.remove(key))

    def _removed(self, image: str) -> None:
        self._plans = {kind: plan for kind, plan in self._plans.items() if kind[0] != image}

    def _given_up(self, layer: int) -> None:
        self._verifier.forget(layer)

    async def _disown(self, box: NativeSandbox) -> None:
        if box not in self._boxes:
            return
        self._boxes.discard(box)
        self._states.drop(box.plan.saved)
        if box.plan.image.name.startswith(SNAPSHOT_PREFIX):
            await asyncio.to_thread(self._store.give_back, box.plan.image.key)
        if (state := self._heirs.pop(box, None)) is not None:
            await self._states.inherit(state)

    @asynccontextmanager
    async def _witness(self, plan: Plan) -> AsyncIterator[int]:
        """A sandbox of the plan that nobody ever uses: a disk of its has nothing to lose, and takes no room."""
        spec = Spec(storage="disk" if plan.disk else "memory")
        name = f"native-{os.getpid()}-witness"
        tag, link = await self._begin(spec, plan, plan.packet, name, reserved=False)
        try:
            await self._greet(link, tag)
            yield tag
        finally:
            link.close()
            await finish(self._spawner.destroy(tag))


async def _destroy(box: Sandbox) -> None:
    await box.destroy()


def _network_env(spec: Spec) -> Mapping[str, str]:
    return proxy_env() if isinstance(spec.network, Egress) else {}


def _close_result(task: asyncio.Task[int]) -> None:
    if task.exception() is None:
        os.close(task.result())


async def open_native(
    program: Path, *, cgroup: str, stock: int, version: str, verify: str = "quick"
) -> NativeSubstrate:
    """Start a spawner and wrap it."""
    if cgroup not in ("auto", "v1", "v2", "none"):
        raise Misuse(f"must be auto, v1, v2 or none, not {cgroup!r}", field="cgroup", driver="native")
    if not 0 <= stock <= 256:
        raise Misuse(f"must be between 0 and 256, not {stock}", field="stock", driver="native")
    if verify not in ("quick", "full"):
        raise Misuse(f"must be quick or full, not {verify!r}", field="verify", driver="native")
    spawner = await Spawner.start(program, cgroup=cgroup, stock=stock)
    substrate = NativeSubstrate(spawner, Store.default(), version, verify="full" if verify == "full" else "quick")
    substrate.stocked = stock
    return substrate
