"""Tests of what a copy inherits besides files: environment, directory and user, however copies are combined."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Any

from dutyfree.core.contract import Capabilities, Sandbox
from dutyfree.testing.base import NotOffered, Suite, shell_of
from dutyfree.testing.state import able

SAY = 'id -u; pwd; echo "${TOKEN-unset} ${OTHER-unset}"'


def particular(offered: Capabilities) -> dict[str, Any]:
    """A spec's fields, none of them a default."""
    user = {"user": "65534"} if offered.users else {}
    return {"env": {"TOKEN": "a b", "OTHER": "1"}, "cwd": "/usr", **user}


async def said(box: Sandbox) -> list[str]:
    """Ask the user and the directory of an action."""
    out = await box.run(SAY)
    assert out.ok, out
    return out.text().splitlines()


class HeritageSuite(Suite):
    async def kin(self, ability: str, image: str | None = None) -> tuple[Sandbox, list[str]]:
        """A particular sandbox that has the ability, and what it says of itself; or the refusal."""
        fields = particular(self.substrate.capabilities)
        found = {} if image is None else {"image": image}
        box = await able(
            self, ability, lambda box: box.fork(1) if ability == "fork" else box.snapshot(), **fields, **found
        )
        expected = [fields.get("user", "0"), fields["cwd"], "a b 1"]
        assert await said(box) == expected
        return box, expected

    async def test_a_fork_acts_as_its_parent(self) -> None:
        box, expected = await self.kin("fork")
        async with (await box.fork(1))[0] as one:
            assert await said(one) == expected
            for name in ("env", "cwd", "user"):
                assert getattr(one.spec, name) == getattr(box.spec, name)
            if one.capabilities.shell:
                async with await one.shell() as shell:
                    assert (await shell.run(SAY)).text().splitlines() == expected
            if one.capabilities.stream:
                assert (await (await one.start(SAY)).wait()).text().splitlines() == expected
        await box.destroy()

    async def test_a_fork_of_a_fork_acts_as_the_first(self) -> None:
        box, expected = await self.kin("fork")
        async with (await box.fork(1))[0] as one:
            await box.destroy()
            async with (await one.fork(1))[0] as two:
                assert await said(two) == expected

    async def test_a_fork_can_act_otherwise_when_told_to(self) -> None:
        box, expected = await self.kin("fork")
        async with (await box.fork(1))[0] as one:
            out = await one.run(SAY, cwd="/", env={"TOKEN": "x"})
            assert out.text().splitlines() == [expected[0], "/", "x 1"]
        await box.destroy()

    async def test_a_fork_acts_as_its_parent_after_a_reset(self) -> None:
        box, expected = await self.kin("fork")
        async with (await box.fork(1))[0] as one:
            if not one.capabilities.reset:
                await box.destroy()
                raise NotOffered
            await one.reset()
            assert await said(one) == expected
        await box.destroy()

    async def test_what_starts_from_a_snapshot_acts_as_what_was_saved(self) -> None:
        box, expected = await self.kin("snapshot")
        saved = await box.snapshot()
        async with self.box(image=saved.image) as later:
            assert await said(later) == expected
            async with await shell_of(later) as shell:
                assert (await shell.run(SAY)).text().splitlines() == expected
        await box.destroy()

    async def test_what_a_spec_says_wins_over_what_a_snapshot_remembers(self) -> None:
        box, expected = await self.kin("snapshot")
        saved = await box.snapshot()
        given: Mapping[str, Any] = {"env": {"TOKEN": "x"}, "cwd": "/"}
        async with self.box(image=saved.image, **given) as later:
            assert await said(later) == [expected[0], "/", "x 1"]
            again = await later.snapshot()
        async with self.box(image=again.image, user="root" if box.capabilities.users else None) as last:
            assert await said(last) == ["0", "/", "x 1"]
        await box.destroy()

    async def test_a_fork_of_what_started_from_a_snapshot_acts_as_what_was_saved(self) -> None:
        box, expected = await self.kin("snapshot")
        saved = await box.snapshot()
        async with self.box(image=saved.image) as later:
            await box.destroy()
            if not later.capabilities.fork:
                raise NotOffered
            async with (await later.fork(1))[0] as one:
                assert await said(one) == expected
                fork_saved = await one.snapshot()
                async with self.box(image=fork_saved.image) as last:
                    assert await said(last) == expected

    async def test_a_snapshot_by_key_remembers_for_other_connections(self) -> None:
        box, expected = await self.kin("snapshot")
        saved = await box.snapshot(f"suite-{secrets.token_hex(8)}")
        try:
            await box.destroy()
            async with self.connect() as other, other.create(self.spec(image=saved.image)) as later:
                assert await said(later) == expected
        finally:
            await saved.remove()

    async def test_a_snapshot_can_remember_another_spec(self) -> None:
        box, _ = await self.kin("snapshot")
        saved = await box.snapshot(spec=self.spec(env={"OTHER": "2"}, cwd="/", user=box.spec.user and "root"))
        async with self.box(image=saved.image) as later:
            assert (await said(later))[:2] == ["0", "/"]
            assert (await said(later))[2].endswith("2")
        await box.destroy()
