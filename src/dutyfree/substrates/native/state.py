"""The saved states of one substrate: layers in memory, snapshots in the store, and who still needs them.

A snapshot without a key lives where its sandbox wrote: in memory (a layer that only the spawner holds, gone with it) or
on disk (a temporary snapshot of the store, which also goes when its process is killed). One with a key is kept in the
store. Owns the layers in memory; a layer is given up when no snapshot names it and no sandbox stands on it.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from dataclasses import dataclass

from dutyfree.core.contract import SNAPSHOT_PREFIX
from dutyfree.core.errors import DriverError, Unsupported
from dutyfree.core.pending import finish
from dutyfree.image.resolve import Image
from dutyfree.image.root import Building
from dutyfree.image.store import Store, check_snapshot
from dutyfree.substrates.native.plan import MemoryLayer, Plan
from dutyfree.substrates.native.spawner import MAX_LAYERS, Copied, Spawner


@dataclass(slots=True, eq=False)
class State:
    """Something that sandboxes can be created from by its name, until it is discarded."""

    key: str
    image: Image | None
    """What lies below; None: the store knows (it is a snapshot there)."""
    saved: tuple[MemoryLayer, ...] = ()
    heirs: int = 0
    """Forks that may still come or are alive; at none the state goes."""

    @property
    def name(self) -> str:
        """As in `Spec.image`."""
        return SNAPSHOT_PREFIX + self.key


class NativeSnapshot:
    """`Snapshot` of a native sandbox."""

    def __init__(self, states: States, state: State) -> None:
        self._states = states
        self._state = state

    @property
    def key(self) -> str:
        """The name that the snapshot is kept under."""
        return self._state.key

    @property
    def image(self) -> str:
        """The image's name."""
        return self._state.name

    async def remove(self) -> None:
        """Give it up."""
        await finish(self._states.discard(self._state))


class States:
    """Made with its substrate, closed by it after the last sandbox has ended."""

    def __init__(
        self, spawner: Spawner, store: Store, *, removed: Callable[[str], None], given_up: Callable[[int], None]
    ) -> None:
        """`removed` is told of each name that means nothing any more, `given_up` of each layer's number."""
        self._removed = removed
        self._given_up = given_up
        self._spawner = spawner
        self._store = store
        self._states: dict[str, State] = {}

    def find(self, name: str) -> State | None:
        """A state in memory; what the store has is found there."""
        state = self._states.get(name)
        return state if state is not None and state.image is not None else None

    def hold(self, layers: Iterable[MemoryLayer]) -> None:
        """One user more for each."""
        for layer in layers:
            layer.users += 1

    def drop(self, layers: Iterable[MemoryLayer]) -> None:
        """One user less for each."""
        for layer in layers:
            layer.users -= 1
            if layer.users == 0:
                self._given_up(layer.number)
                self._spawner.forget(layer.number)

    async def save(self, tag: int, plan: Plan, key: str | None, *, heirs: int = 0) -> State:
        """The state of the sandbox `tag`, which was made by `plan`. Cancelled: nothing is left of it."""
        if len(plan.order.layers) >= MAX_LAYERS:
            raise Unsupported(
                f"it stands on {len(plan.order.layers)} layers, image and saved states together: there can be no more",
                driver="native",
                step="snapshot",
            )
        if key is not None:
            check_snapshot(key)
        if key is None and not plan.disk:
            state = await self._save_in_memory(tag, plan)
        else:
            state = await self._save_in_store(tag, plan, key)
        state.heirs = heirs
        if key is None:
            self._states[state.name] = state
        return state

    async def discard(self, state: State) -> None:
        """Take a state from view; sandboxes that stand on it are not disturbed. Calling it twice is fine."""
        known = self._states.pop(state.name, None)
        self._removed(state.name)
        if state.image is None:
            await asyncio.to_thread(self._store.remove_snapshot, state.key)
        elif known is not None:
            self.drop(state.saved)

    async def remove(self, key: str) -> None:
        """Take the state of that key from view."""
        await self.discard(self._states.get(SNAPSHOT_PREFIX + key) or State(key=key, image=None))

    async def inherit(self, state: State) -> None:
        """A fork of the state has ended, or will not come."""
        state.heirs -= 1
        if state.heirs == 0:
            await self.discard(state)

    async def holds(self, name: str) -> bool:
        """Whether a sandbox could start from the image at once."""
        if name == "host" or self.find(name) is not None:
            return True
        return self._store.named(name) is not None if not name.startswith("/") else False

    def close(self) -> None:
        """Forget everything in memory; the spawner, which has it, is closed after this."""
        self._states.clear()

    async def _save_in_memory(self, tag: int, plan: Plan) -> State:
        layer = MemoryLayer(self._spawner.new_layer())
        try:
            done = await self._spawner.copy(tag, layer=layer.number)
        except BaseException:
            self._spawner.forget(layer.number)
            raise
        saved = (layer, *plan.saved)
        if done.entries == 0:  # nothing was written: what lies below is the state
            self._spawner.forget(layer.number)
            saved = plan.saved
        self.hold(saved)
        return State(key=secrets.token_hex(8), image=plan.image, saved=saved)

    async def _save_in_store(self, tag: int, plan: Plan, key: str | None) -> State:
        name = SNAPSHOT_PREFIX + (key or secrets.token_hex(8))
        state = State(key=name.removeprefix(SNAPSHOT_PREFIX), image=None)
        if await asyncio.to_thread(self._is_stored, name):
            return state
        publishing: asyncio.Future[None] | None = None
        try:
            async with contextlib.AsyncExitStack() as stack:
                drafts = []
                for source in (0, *(layer.number for layer in plan.saved)):
                    draft = await stack.enter_async_context(_draft(self._store))
                    drafts.append((draft, await self._spawner.copy(tag, path=draft.rootfs, source=source)))
                work = asyncio.to_thread(self._publish, state.key, plan, drafts, key is None)
                publishing = asyncio.ensure_future(work)
                stack.push_async_callback(finish, _over(publishing))  # before the drafts are deleted
                await asyncio.shield(publishing)
        except OSError as error:
            what = f"cannot keep the snapshot: {error.strerror or error}"
            raise DriverError(what, driver="native", step="snapshot") from error
        except asyncio.CancelledError:
            # One with a key stays if it was complete; nobody would remove one without.
            if publishing is not None and publishing.exception() is None and key is None:
                await finish(self.discard(state))
            raise
        return state

    def _is_stored(self, name: str) -> bool:
        image = self._store.named(name)
        return image is not None and self._store.images.whole(image) is not None

    def _publish(self, key: str, plan: Plan, drafts: Sequence[tuple[Building, Copied]], temporary: bool) -> None:
        """In a thread: what was copied becomes layers, and with those of the image a snapshot."""
        image, keys = plan.image, []
        for draft, done in drafts:
            if done.entries:
                keys.append(self._store.publish_layer(draft, hashed=not temporary, durable=not temporary))
        self._store.save_snapshot(
            key,
            (*keys, *image.layer_keys),
            env=image.env,
            cwd=image.cwd,
            user=image.user,
            binds=image.binds,
            temporary=temporary,
        )


@contextlib.asynccontextmanager
async def _draft(store: Store) -> AsyncIterator[Building]:
    """A draft of a layer, deleted at the end unless it was published; the store's work is done in threads."""
    manager = store.draft_layer()
    opening = asyncio.ensure_future(asyncio.to_thread(manager.__enter__))

    async def delete() -> None:
        await asyncio.wait([opening])
        if opening.exception() is None:
            await asyncio.to_thread(manager.__exit__, None, None, None)

    try:
        yield await asyncio.shield(opening)
    finally:
        await finish(delete())


async def _over(work: asyncio.Future[None]) -> None:
    await asyncio.wait([work])
