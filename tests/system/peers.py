"""What the libraries of embedded microVMs do without KVM, through our drivers. Each scenario is a program of its own: the
libraries keep threads and descriptors as long as their process lives. `python peers.py <scenario> <directory>`"""

import asyncio
import os
import sys
from pathlib import Path

import pytest

from dutyfree.core.errors import DriverError, Misuse, Unsupported
from dutyfree.core.spec import Limits, Spec
from dutyfree.image.resolve import Image
from dutyfree.substrates.embedded.substrate import EmbeddedSubstrate
from dutyfree.substrates.hosted.substrate import NAME_LABEL
from dutyfree.substrates.sweep import OWNER_LABEL, owner_mark

SPEC = Spec(limits=Limits(cpus=1, memory_bytes=256 << 20))
MARKS = {OWNER_LABEL: owner_mark(), NAME_LABEL: "dutyfree-peer-1-1-abcdef"}


def dead_mark() -> str:
    """Of this machine and boot, and of nobody who lives."""
    return f"{'.'.join(owner_mark().split('.')[:2])}.{os.getpid()}.1"


def image(place: Path) -> Image:
    root = place / "root"
    (root / "bin").mkdir(parents=True)
    (root / "bin" / "hello").write_bytes(bytes(range(256)))
    return Image(name="tiny", key="ab" * 32, layers=(root,), env={"PATH": "/bin"}, cwd="/bin")


async def microsandbox_takes_images(place: Path) -> None:
    from microsandbox import Image as Images

    from dutyfree.substrates.microsandbox.library import Microsandbox

    library = Microsandbox(agent=False)
    name = await library.bring(image(place))
    found = await Images.inspect(name)
    assert found.config.env == ["PATH=/bin"]
    assert found.config.working_dir == "/bin"
    assert len(found.layers) == 1
    assert await library.bring(Image(name="tiny", key="ab" * 32, layers=())) == name  # it is not written again
    await Images.remove(name)


async def microsandbox_takes_arguments(place: Path) -> None:
    """The library checks names and types before it looks for the image."""
    from microsandbox import Sandbox

    from dutyfree.substrates.microsandbox.driver import AGENT
    from dutyfree.substrates.microsandbox.library import Microsandbox

    library = Microsandbox(agent=True)
    with pytest.raises(DriverError, match="nowhere"):
        await library.start(Spec(image=str(place / "nowhere"), limits=SPEC.limits), MARKS, 300.0)
    with pytest.raises(TypeError, match="no_such_argument"):
        await Sandbox.create("x", image=str(place), no_such_argument=1)
    assert await library.marked(OWNER_LABEL) == {}
    await library.end("dutyfree-nobody")
    substrate = EmbeddedSubstrate("microsandbox", library, AGENT)
    assert await substrate.sweep() == []
    await substrate.close()


async def boxlite_shares_no_home(place: Path) -> None:
    from dutyfree.substrates.boxlite.driver import CAPABILITIES
    from dutyfree.substrates.boxlite.library import open_home, options_of

    first, second = await open_home(None), await open_home(None)
    homes = sorted(path.name for path in (place / "boxlite").iterdir())
    assert homes == ["home-0", "home-1"], homes
    layout = await first.bring(image(place))
    assert layout == await second.bring(Image(name="tiny", key="ab" * 32, layers=()))
    options = options_of(Spec(image=layout, limits=SPEC.limits))
    assert (options.rootfs_path, options.image, options.cpus, options.memory_mib) == (layout, None, 1, 256)
    assert options.network.outbound.mode == "disabled"
    dead = f"dutyfree-boxlite-1-1-abcdef.{dead_mark()}"
    alive = f"dutyfree-boxlite-1-2-abcdef.{owner_mark()}"
    for name in (dead, alive, "somebody.elses"):
        await first._runtime.create(options, name=name)
    assert (await first.marked(OWNER_LABEL)).keys() == {dead, alive}
    substrate = EmbeddedSubstrate("boxlite", first, CAPABILITIES)
    assert await substrate.sweep() == [dead]
    assert {one.name for one in await first._runtime.list_info()} == {alive, "somebody.elses"}
    await first.end(alive)
    await first.end(alive)
    await substrate.close()
    await second.close()
    del first, second, substrate
    again = await open_home(str(place / "boxlite" / "home-0"))  # its lock was given up
    await again.close()


async def unknown_images_are_misuse(place: Path) -> None:
    from dutyfree.substrates.microsandbox.driver import API
    from dutyfree.substrates.microsandbox.library import Microsandbox

    substrate = EmbeddedSubstrate("microsandbox", Microsandbox(agent=False), API)
    try:
        with pytest.raises(Misuse, match="image"):
            await substrate.create(Spec(image=str(place / "none")))
        with pytest.raises(Unsupported, match="host"):
            await substrate.create(Spec(image="host"))
    finally:
        await substrate.close()


if __name__ == "__main__":
    asyncio.run(globals()[sys.argv[1]](Path(sys.argv[2])))
