"""Driver `noop`, its substrate and its sandboxes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from pathlib import Path
from typing import Never

from dutyfree.core.contract import (
    DEFAULT_OUTPUT_LIMIT_BYTES,
    Availability,
    Capabilities,
    Command,
    Driver,
    FileInfo,
    Sandbox,
    Substrate,
)
from dutyfree.core.errors import Misuse, SandboxLost
from dutyfree.core.keyword import check_names, unknown_for
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Content, Inside, Spec, User, check_env, check_path, check_timeout
from dutyfree.core.timeline import Timeline, now_ns
from dutyfree.driver.offer import check_offered, strictest_network
from dutyfree.guest.argument import command_items, input_bytes, output_limit, whole
from dutyfree.guest.transfer import local_path
from dutyfree.substrates.noop.tree import Tree

CAPABILITIES = Capabilities(
    isolation="none",
    dispatch="api",
    networks=frozenset({"host", "none"}),
    storages=frozenset({"memory"}),
    notes={"isolation": "nothing is run at all", "process_tree": "there are no processes"},
)


class NoopSandbox(Sandbox):
    """Says yes to every command."""

    def __init__(self, number: int, spec: Spec) -> None:
        self.id = f"noop-{number}"
        self.spec = spec
        self.network = spec.network or "none"
        self.capabilities = CAPABILITIES
        self.timeline = Timeline()
        self._tree: Tree | None = Tree()

    async def run(
        self,
        command: Command,
        *,
        timeout_s: float | None = None,
        cwd: Inside | None = None,
        env: Mapping[str, str] | None = None,
        stdin: Content = b"",
        user: User | None = None,
        merge_stderr: bool = False,
        output_limit_bytes: int = DEFAULT_OUTPUT_LIMIT_BYTES,
        kill_on_output_limit: bool = False,
        background: bool = False,
        **unknown: Never,
    ) -> Outcome:
        """Check the arguments, as every driver must, and answer."""
        if unknown:
            raise unknown_for(Sandbox.run, unknown)
        del merge_stderr, kill_on_output_limit, background
        called_ns = now_ns()
        self._files()
        command_items(command)
        check_timeout("timeout_s", timeout_s)
        input_bytes(stdin)
        output_limit(output_limit_bytes)
        if cwd is not None:
            check_path("cwd", cwd)
        if env is not None:
            check_env("env", env)
        self._own(user)
        return Outcome(ending="exit", exit_code=0, total_ns=now_ns() - called_ns)

    async def read(
        self, path: Inside, *, offset: int = 0, length: int | None = None, user: User | None = None
    ) -> bytes:
        """A file's bytes."""
        self._own(user)
        whole("offset", offset, 0, 1 << 62)
        data = self._files().read(check_path("path", path))[offset:]
        return data if length is None else data[: whole("length", length, 0, 1 << 62)]

    async def write(
        self, path: Inside, data: Content, *, mode: int = 0o644, append: bool = False, user: User | None = None
    ) -> None:
        """Create or replace a file."""
        self._own(user)
        self._files().write(check_path("path", path), bytes(input_bytes(data, "data")), mode, append)

    async def stat(self, path: Inside, *, follow: bool = True, user: User | None = None) -> FileInfo:
        """Describe the file at a path."""
        self._own(user)
        del follow
        return self._files().stat(check_path("path", path))

    async def list(self, path: Inside, *, limit: int = 100_000, user: User | None = None) -> list[FileInfo]:
        """A directory's entries."""
        self._own(user)
        return self._files().list(check_path("path", path), whole("limit", limit, 1, 1 << 40))

    async def mkdir(self, path: Inside, *, mode: int = 0o755, user: User | None = None) -> None:
        """A directory and those above it."""
        self._own(user)
        self._files().mkdir(check_path("path", path), mode)

    async def remove(self, path: Inside, *, recursive: bool = False, user: User | None = None) -> None:
        """A file or a directory."""
        self._own(user)
        self._files().remove(check_path("path", path), recursive)

    async def rename(self, source: Inside, target: Inside, *, user: User | None = None) -> None:
        """As rename(2)."""
        self._own(user)
        there = check_path("target", target)
        self._files().rename(check_path("source", source), there)

    async def upload(self, local: Path | str, remote: Inside) -> None:
        """Into memory."""
        self._files().copy_in(local_path("local", local), check_path("remote", remote))

    async def download(self, remote: Inside, local: Path | str, *, limit_bytes: int = 1 << 30) -> None:
        """Out of memory."""
        limit_bytes = whole("limit_bytes", limit_bytes, 0, 1 << 50)
        self._files().copy_out(check_path("remote", remote), local_path("local", local), limit_bytes)

    async def destroy(self) -> None:
        """Forget the files."""
        if self._tree is not None:
            with self.timeline.span("destroy"):
                self._tree = None

    def _own(self, user: User | None) -> None:
        if user is not None:
            raise self._unsupported("users")

    def _files(self) -> Tree:
        if self._tree is None:
            raise SandboxLost("the sandbox is gone: it was destroyed", driver="noop", sandbox=self.id)
        return self._tree


class NoopSubstrate(Substrate):
    """Hands out sandboxes that do nothing."""

    name = "noop"
    version = "1"
    capabilities = CAPABILITIES

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._boxes: list[NoopSandbox] = []
        self._closed = False

    async def _create(self, spec: Spec) -> Sandbox:
        start_ns = now_ns()
        if self._closed:
            raise Misuse("the substrate is closed", driver=self.name)
        if spec.image != "host":
            raise Misuse(f"{spec.image!r} is not known: there is only 'host'", field="image", driver=self.name)
        check_offered(spec, spec.network or strictest_network(self.capabilities), self.capabilities, driver=self.name)
        box = NoopSandbox(next(self._numbers), spec)
        self._boxes.append(box)
        made_ns = now_ns()
        box.timeline.add("create", start_ns, made_ns)
        box.timeline.add("ready", made_ns, made_ns)
        return box

    async def close(self) -> None:
        """Destroy what is left."""
        self._closed = True
        for box in self._boxes:
            await box.destroy()
        self._boxes.clear()


class NoopDriver(Driver):
    """The entry point's object."""

    name = "noop"
    summary = "runs nothing: what the instrument itself costs"

    def declared(self) -> list[Capabilities]:
        """The same everywhere."""
        return [CAPABILITIES]

    def probe(self) -> Availability:
        """Always there."""
        return Availability(available=True, reason="runs nothing", version="1", capabilities=CAPABILITIES)

    async def connect(self, options: Mapping[str, str]) -> Substrate:
        """Nothing to start."""
        check_names(options, (), driver=self.name)
        return NoopSubstrate()


driver = NoopDriver()
