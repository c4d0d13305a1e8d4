"""`RuntimeDriver`: how the registry finds a runtime program, for every driver that is one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import ClassVar

from dutyfree.core.contract import Availability, Capabilities, Dispatch, Driver, Substrate
from dutyfree.core.errors import Misuse, Unavailable
from dutyfree.substrates.engine.options import check_options, dispatch_of
from dutyfree.substrates.oci.program import enable, find_program, obstacle, version_of
from dutyfree.substrates.oci.substrate import Flags, Runtime, open_runtime


class RuntimeDriver(Driver):
    """A driver says what its program is called with and what that offers."""

    name: str
    summary: str
    variants: ClassVar[tuple[str, Sequence[str]]]
    """An option of the driver's own and its values, the default first."""
    overlays: ClassVar[bool] = False
    """The program keeps writes away from the image by itself."""

    @abstractmethod
    def program(self, variant: str) -> str:
        """The program's name."""

    @abstractmethod
    def flags(self, variant: str) -> Flags:
        """Its global flags for a sandbox."""

    @abstractmethod
    def offered(self, dispatch: Dispatch) -> Capabilities:
        """Capabilities of the runtime's sandboxes."""

    def declared(self) -> list[Capabilities]:
        """Of both dispatch modes."""
        return [self.offered("agent"), self.offered("api")]

    def probe(self) -> Availability:
        """Look for the program."""
        name = self.program(self.variants[1][0])
        why = obstacle(name)
        if why is not None:
            return Availability(available=False, reason=why, enable=enable(name))
        path = find_program(name) or name
        return Availability(
            available=True, reason=f"{path}, as root", version=version_of(path), capabilities=self.offered("agent")
        )

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Remove what dead owners left; nothing else to start."""
        option, values = self.variants
        check_options(options, ("dispatch", option), self.name)
        variant = options.get(option, values[0])
        if variant not in values:
            raise Misuse(f"must be {' or '.join(values)}, not {variant!r}", field=option, driver=self.name)
        name = self.program(variant)
        why = obstacle(name)
        if why is not None:
            raise Unavailable(why, enable=enable(name), driver=self.name)
        path = find_program(name) or name
        runtime = Runtime(
            driver=self.name,
            version=f"{version_of(path)}, {variant}",
            program=path,
            flags=self.flags(variant),
            capabilities=self.offered(dispatch_of(options)),
            overlays=self.overlays,
        )
        return await open_runtime(runtime)
