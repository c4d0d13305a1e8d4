"""`StateKeeper`: who still needs a saved state. The one place where forks, snapshots and their ends are counted.

    save ─► named, uses ≥ 1 ─ forget ─► unnamed, uses ≥ 1 ─ last use released ─► deleted; its parent loses a use

Content is deleted when the last sandbox that stands on it has ended, and not before.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from time import monotonic

from dutyfree.core.contract import SNAPSHOT_PREFIX
from dutyfree.core.errors import DutyfreeError, Misuse
from dutyfree.core.pending import finish
from dutyfree.driver.backend import Body, ImageDefaults, State, StateStore

FOUND_S = 1.0
"""How long an image that was looked up counts as unchanged."""
_MOST_FOUND = 1024


@dataclass(frozen=True, slots=True)
class StateSnapshot:
    """A kept state, for whoever made it."""

    key: str
    keeper: StateKeeper

    @property
    def image(self) -> str:
        """The name that `Spec.image` takes."""
        return SNAPSHOT_PREFIX + self.key

    async def remove(self) -> None:
        """Give it up; sandboxes that stand on it are not disturbed."""
        await self.keeper.remove(self.key)


class StateKeeper:
    """The states of one substrate."""

    def __init__(self, store: StateStore) -> None:
        self._store = store
        self._states: dict[str, State] = {}
        """Those that were saved here, by the name of their image."""
        self._found: dict[str, tuple[float, State]] = {}
        """Those that the store knows, with the time until which that is believed."""
        self._saving: defaultdict[str, asyncio.Lock] = defaultdict(asyncio.Lock)

    async def find(self, image: str) -> State:
        """Tell what the name means now. `Misuse` if there is nothing of that name."""
        if (state := self._states.get(image)) is not None:
            return state
        found = self._found.get(image)
        now_s = monotonic()
        if found is not None and now_s < found[0]:
            return found[1]
        state = await self._store.find(image)
        if found is not None and found[1].content == state.content:
            state = found[1]  # its users are counted there
        if len(self._found) >= _MOST_FOUND:
            self._found.clear()
        self._found[image] = monotonic() + FOUND_S, state
        return state

    async def holds(self, image: str) -> bool:
        """Tell whether a sandbox could start from the image at once."""
        return image in self._states or await self._store.holds(image)

    async def save(self, body: Body, on: State, key: str | None, image: ImageDefaults, *, forks: int = 0) -> State:
        """Save the body's files on top of `on`. One whose key exists already is given back, and nothing is saved.

        With `forks` the state has that many uses, one for each promised child, and its name adds none.
        """
        if key is None:
            return self._keep(await self._store.save(body, on, None, image), forks)
        async with self._saving[key]:
            if await self.holds(name := SNAPSHOT_PREFIX + key):
                return await self.find(name)
            return self._keep(await self._store.save(body, on, key, image), forks)

    def take(self, state: State) -> None:
        """Count one use more."""
        state.uses += 1

    async def release(self, state: State | None) -> None:
        """Count one use less; after the last one the content is deleted, and its parent loses a use."""
        while state is not None:
            state.uses -= 1
            if state.uses > 0:
                return
            self._drop(state)
            if state.temporary or not state.named:
                await self._store.delete(state)
            state = state.parent

    async def remove(self, key: str) -> None:
        """Take a state's name away. Calling it twice is fine."""
        await finish(self._remove(SNAPSHOT_PREFIX + key))

    async def close(self) -> None:
        """Forget the temporary states: the last sandbox has ended."""
        states = [state for state in reversed(self._states.values()) if state.temporary]
        self._states.clear()
        self._found.clear()
        failed: list[DutyfreeError] = []
        for state in states:  # each before the one it lies on, whatever became of the one before
            try:
                await self._store.forget(state)
                await self._store.delete(state)
            except DutyfreeError as error:
                failed.append(error)
        if failed:
            raise failed[0]

    async def _remove(self, image: str) -> None:
        try:
            state = await self.find(image)
        except Misuse:
            return
        await self._forget(state)

    async def _forget(self, state: State) -> None:
        self._drop(state)
        named, state.named = state.named, False
        await self._store.forget(state)
        if named:
            await self.release(state)

    def _drop(self, state: State) -> None:
        name = SNAPSHOT_PREFIX + state.key
        if self._states.get(name) is state:
            del self._states[name]
        self._found.pop(name, None)

    def _keep(self, state: State, forks: int) -> State:
        if state.parent is not None:
            self.take(state.parent)
        if forks:
            state.uses, state.named, state.temporary = forks, False, True
        self._states[SNAPSHOT_PREFIX + state.key] = state
        return state
