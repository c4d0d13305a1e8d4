"""Harbor: `harbor run -e dutyfree.adapters.harbor:Environment`. Options by `--ek name=value`: those of `start_of`.

A task's image is its `docker_image`, or its Dockerfile as stages that are built once. A task that leaves its network
public gets the strictest there is, unless `--ek network=host` gives it this machine's own. What fails in the machinery is an
exception of the trial, and never a reward.
"""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from harbor.environments.base import BaseEnvironment, ExecResult, SandboxBuildFailedError
from harbor.environments.capabilities import EnvironmentCapabilities, EnvironmentResourceCapabilities
from harbor.environments.definition import should_use_prebuilt_docker_image
from harbor.models.task.config import NetworkMode
from harbor.models.trial.config import ResourceMode

from dutyfree.adapters import dockerfile
from dutyfree.adapters.rollout import Rollout, Start, begin, exit_status, start_of
from dutyfree.core.egress import Egress
from dutyfree.core.errors import Misuse, StageFailed, Unsupported
from dutyfree.core.outcome import Outcome
from dutyfree.core.spec import Limits, Network, Spec

_SETTINGS = ("substrate", "start", "image", "cwd", "user", "network", "cpus", "memory_bytes", "lifetime_s")


class Environment(BaseEnvironment):
    """A rollout as Harbor's environment of one trial."""

    def __init__(self, *args: Any, build_network: Network = "host", **settings: Any) -> None:
        self._given = {name: settings.pop(name) for name in _SETTINGS if name in settings}
        self._build_network = build_network
        self._rollout: Rollout | None = None
        super().__init__(*args, **settings)

    @staticmethod
    def type() -> str:
        """The name in Harbor's records."""
        return "dutyfree"

    @property
    def capabilities(self) -> EnvironmentCapabilities:
        """What tasks may ask for."""
        kinds = ("hostnames", "wildcard_hostnames", "ipv4_addresses", "ipv6_addresses", "ipv4_cidrs", "ipv6_cidrs")
        offered = {f"network_allowlist_{kind}": True for kind in kinds}
        return EnvironmentCapabilities(disable_internet=True, network_allowlist=True, **offered)

    @classmethod
    def resource_capabilities(cls) -> EnvironmentResourceCapabilities:
        """Limits are hard; nothing is reserved."""
        return EnvironmentResourceCapabilities(cpu_limit=True, memory_limit=True, fractional_cpus=True)

    def _validate_definition(self) -> None:
        """Refuse at once what will not be built."""
        self._start(force_build=False)

    def _start(self, *, force_build: bool) -> Start:
        config = self.task_env_config
        image, path = config.docker_image, self.environment_dir / "Dockerfile"
        if should_use_prebuilt_docker_image(self.environment_dir, docker_image=image, force_build=force_build):
            spec = Spec(image=image)
        elif path.is_file():
            spec = dockerfile.load(path, network=self._build_network)
        elif self._given.get("image") or self._given.get("start"):
            spec = Spec()
        else:
            raise FileNotFoundError(f"{path} is not there, and task.toml names no docker_image")
        cpus = self._resource_limit_value("cpu", auto_mode=ResourceMode.LIMIT)
        memory = self._resource_limit_value("memory", auto_mode=ResourceMode.LIMIT)
        limits = Limits(cpus=cpus, memory_bytes=None if memory is None else memory << 20)
        spec = replace(spec, limits=limits, network=self._network(), cwd=config.workdir or spec.cwd)
        return start_of(**{"start": spec, **self._given})

    def _network(self) -> Network | Egress | None:
        policy = self.network_policy
        if policy.network_mode == NetworkMode.ALLOWLIST:
            return Egress(allow=tuple(policy.allowed_hosts))
        return "none" if policy.network_mode == NetworkMode.NO_NETWORK else None

    async def start(self, force_build: bool) -> None:
        """Lease the trial's sandbox; what its Dockerfile says is built before, once."""
        start = self._start(force_build=force_build)
        workdir, start = start.spec.cwd, replace(start, spec=replace(start.spec, cwd=None))
        try:
            self._rollout = await begin(start)
        except (StageFailed, Unsupported) as error:
            raise SandboxBuildFailedError(str(error)) from error
        try:
            if workdir:
                await self._rollout.mkdir(workdir, user=self._root)
                self._rollout.directory_is(workdir)
            await self.ensure_dirs(self._mount_targets(writable_only=True))
            await self._upload_environment_dir_after_start()
        except BaseException:
            await self.stop(delete=True)
            raise

    async def stop(self, delete: bool) -> None:
        """Free the sandbox; it is not kept, whatever `delete` says."""
        del delete
        if self._rollout is not None:
            rollout, self._rollout = self._rollout, None
            await rollout.end()

    async def exec(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout_sec: int | None = None,
        user: str | int | None = None,
    ) -> ExecResult:
        """Run a command by bash."""
        who = self._resolve_user(user)
        outcome = await self._live.run(
            command,
            cwd=await self._live.path(cwd or "."),
            env=self._merge_env(env),
            timeout_s=timeout_sec,
            user=None if who is None else str(who),
        )
        stdout, stderr = (stream.decode(errors="replace") for stream in (outcome.stdout, outcome.stderr))
        if (emit := self._output_callback()) is not None:
            for text, name in ((stdout, "stdout"), (stderr, "stderr")):
                if text:
                    await emit(text, cast("Any", name))
        _check_ending(outcome, timeout_sec)
        return ExecResult(stdout=stdout, stderr=stderr, return_code=exit_status(outcome))

    async def upload_file(self, source_path: Path | str, target_path: str) -> None:
        """Copy a file in."""
        await self._live.upload(Path(source_path), await self._live.path(target_path))

    async def upload_dir(self, source_dir: Path | str, target_dir: str) -> None:
        """Copy a directory's content in, beside what is there."""
        await self._live.upload(Path(source_dir), await self._live.path(target_dir))

    async def download_file(self, source_path: str, target_path: Path | str) -> None:
        """Copy a file out, over one that is there."""
        await self._out(source_path, Path(target_path))

    async def download_dir(self, source_dir: str, target_dir: Path | str) -> None:
        """Copy a directory's content out, beside what is there."""
        await self._out(source_dir, Path(target_dir))

    async def _out(self, source: str, target: Path) -> None:
        target.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=target.parent) as fresh:
            copy = Path(fresh) / "copy"
            await self._live.download(await self._live.path(source), copy)
            if copy.is_dir():
                await asyncio.to_thread(shutil.copytree, copy, target, symlinks=True, dirs_exist_ok=True)
            else:
                copy.replace(target)

    @property
    def _live(self) -> Rollout:
        if self._rollout is None:
            raise Misuse("the environment is not running: call start() first", field="environment")
        return self._rollout

    @property
    def _root(self) -> str | None:
        return "root" if self._live.box.capabilities.users else None


def _check_ending(outcome: Outcome, timeout_sec: int | None) -> None:
    if outcome.ending == "timeout":
        raise RuntimeError(f"Command timed out after {timeout_sec} seconds")
