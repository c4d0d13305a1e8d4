"""docker by its command line: a fresh container for one command, and one more command in a running container."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks import subprocess_run
from benchmarks.docker_engine import engine
from benchmarks.docker_image import rootfs_tar
from benchmarks.interleave import Contender

RUN = "docker/run"
EXEC = "docker/exec"

_IMAGE = "dutyfree-speed:latest"
_SETTLE_S = 0.1
"""The engine frees a container's mounts and cgroups after its client has returned."""


@contextmanager
def contenders(progress: Callable[[str], None]) -> Iterator[list[Contender]]:
    with engine() as docker, tempfile.TemporaryDirectory(prefix="dutyfree-speed-") as work:
        archive, content = rootfs_tar(Path(work))
        progress(f"docker {docker.version}{' (private engine)' if docker.private else ''}: importing {content}")
        docker.call("import", "-", _IMAGE, stdin=archive)
        archive.unlink()
        run = [*docker.client, "run", "--rm", "--network", "none", _IMAGE, "true"]
        kept = docker.call("run", "--detach", "--network", "none", _IMAGE, "sleep", "infinity")
        execute = [*docker.client, "exec", kept, "true"]
        try:
            yield [
                Contender(
                    name=RUN, group="start", label=f"docker {docker.version}: `docker run --rm --network none … true`",
                    measure=lambda: subprocess_run.once(run), share=0.2, settle_s=_SETTLE_S,
                ),
                Contender(
                    name=EXEC, group="action", label=f"docker {docker.version}: `docker exec … true`",
                    measure=lambda: subprocess_run.once(execute), share=1 / 3, settle_s=_SETTLE_S,
                ),
            ]  # fmt: skip
        finally:
            docker.call("rm", "--force", kept)
            docker.call("rmi", "--force", _IMAGE)
