"""Driver `warm:X`, and the Python function that opens a pool."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dutyfree.core.contract import Substrate
from dutyfree.core.pending import Pending, finish
from dutyfree.core.spec import Spec
from dutyfree.substrates.registry import connect
from dutyfree.warm.declaration import load
from dutyfree.warm.pool import Pool
from dutyfree.warm.settings import Settings, parse


def open_pool(
    substrate: str | Substrate, *, targets: Sequence[tuple[Spec, int]] = (), settings: Settings | None = None
) -> Pending[Pool]:
    """A pool over a substrate, by its name or connected already: await it, or enter it. The pool closes what it is over.

    `targets`: how many sandboxes to keep ready for which spec; they are being made when this returns, see `Pool.settled`.
    """
    return Pending(_open(substrate, targets, settings or Settings()), _close)


class WarmDriver:
    """The entry point's object: a wrapper, whose `connect` takes the rest of the name first."""

    name = "warm"

    async def connect(self, rest: str, options: Mapping[str, str]) -> Substrate:
        """A pool over `rest`; options as in `settings.parse`."""
        wanted = parse(options)
        specs = [load(path) for path in wanted.declarations]
        pool = await _open(rest, (), wanted.settings)
        if wanted.target:
            await _or_close(pool, [(spec, wanted.target) for spec in specs or [Spec()]])
        return pool


async def _open(substrate: str | Substrate, targets: Sequence[tuple[Spec, int]], settings: Settings) -> Pool:
    beneath = substrate if isinstance(substrate, Substrate) else await connect(substrate)
    pool = Pool(beneath, settings)
    pool.start()
    await _or_close(pool, targets)
    return pool


async def _or_close(pool: Pool, targets: Sequence[tuple[Spec, int]]) -> None:
    try:
        await pool.set_targets(targets)
    except BaseException:
        await finish(pool.close())
        raise


async def _close(pool: Pool) -> None:
    await pool.close()


driver = WarmDriver()
