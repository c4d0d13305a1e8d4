"""`Chain`: an image and the stages on it, with the content key of each state on the way."""

from __future__ import annotations

from dataclasses import dataclass, field

from dutyfree.core.contract import SNAPSHOT_PREFIX, Capabilities, Substrate, strictest_network
from dutyfree.core.errors import Unsupported
from dutyfree.core.spec import Network, Spec, Stage
from dutyfree.core.stage import Commands, Repository
from dutyfree.guest.thread import in_thread
from dutyfree.warm.recipe import Recipe, keys, recipe


@dataclass(frozen=True, kw_only=True, slots=True)
class Chain:
    """Chain of stages that leads to one start state. Depth 0 is the image alone."""

    image: str
    root: str
    """The image's own key: another content under the same name is another root."""
    stages: tuple[Stage, ...]
    recipes: tuple[Recipe, ...] = field(hash=False)
    keys: tuple[str, ...]
    """Keys of the state after each stage."""

    @property
    def depth(self) -> int:
        """Number of stages."""
        return len(self.stages)

    @property
    def key(self) -> str:
        """Key of the whole chain."""
        return self.key_at(self.depth)

    @property
    def states(self) -> tuple[str, ...]:
        """The keys of all states, the image's first."""
        return tuple(self.key_at(depth) for depth in range(self.depth + 1))

    def key_at(self, depth: int) -> str:
        """Key of the state after so many stages."""
        return self.keys[depth - 1] if depth else f"image:{self.root}"

    def image_at(self, depth: int) -> str:
        """The name of the image that starts from that state."""
        return f"{SNAPSHOT_PREFIX}{self.keys[depth - 1]}" if depth else self.image

    def label(self, depth: int) -> str:
        """A stage for people: its place and its name. Counted from 1."""
        stage = self.stages[depth - 1]
        return f"{depth} of {self.depth} ({getattr(stage, 'name', type(stage).__name__)})"


async def chain_of(spec: Spec, substrate: Substrate) -> Chain:
    """The chain a spec asks for on a substrate. Reads the local files that its stages name."""
    if spec.stages and not substrate.capabilities.snapshot:
        raise Unsupported("stages are kept as snapshots, which it does not offer", driver=substrate.name, step="build")
    root = await substrate.image_key(spec.image)
    recipes = await in_thread(lambda: tuple(recipe(stage) for stage in spec.stages)) if spec.stages else ()
    return Chain(image=spec.image, root=root, stages=spec.stages, recipes=recipes, keys=keys(root, recipes))


def network_for(stage: Stage, offered: Capabilities) -> Network:
    """The network of the sandbox that a stage is built in."""
    if isinstance(stage, Repository | Commands) and stage.network is not None:
        return stage.network
    if isinstance(stage, Repository) and stage.fetch == "inside":
        return "host"
    return strictest_network(offered)
