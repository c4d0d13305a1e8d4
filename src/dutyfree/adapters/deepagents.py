"""deepagents (LangChain): `create_deep_agent(backend=dutyfree.adapters.deepagents.Sandbox(image="bench"))`.

What happens to a file of the agent's is a value, in deepagents' words; a failure of the machinery is raised.
"""

from __future__ import annotations

from typing import Any

from deepagents.backends.protocol import (
    FILE_NOT_FOUND,
    INVALID_PATH,
    IS_DIRECTORY,
    PERMISSION_DENIED,
    ExecuteResponse,
    FileDownloadResponse,
    FileUploadResponse,
)
from deepagents.backends.sandbox import BaseSandbox

from dutyfree.adapters.rollout import exit_status, lease, start_of
from dutyfree.core.errors import Misuse

TIMED_OUT = 124
"""What `timeout` exits with."""


class Sandbox(BaseSandbox):
    """A sandbox as deepagents' backend; use it as a block, or call `close`."""

    def __init__(self, *, timeout_s: float = 1800, **settings: Any) -> None:
        self._timeout_s = timeout_s
        self.box = lease(start_of(**settings))

    @property
    def id(self) -> str:
        """The sandbox's own."""
        return self.box.id

    def execute(self, command: str, *, timeout: int | None = None) -> ExecuteResponse:
        """Run a command by bash."""
        seconds = timeout or self._timeout_s
        outcome = self.box.run(command, timeout_s=seconds, merge_stderr=True)
        output = outcome.text()
        if outcome.ending == "timeout":
            return ExecuteResponse(
                f"{output}\nCommand timed out after {seconds:g} seconds", TIMED_OUT, outcome.truncated
            )
        return ExecuteResponse(output, exit_status(outcome), outcome.truncated)

    def upload_files(self, files: list[tuple[str, bytes]]) -> list[FileUploadResponse]:
        """Write files, each for itself."""
        return [FileUploadResponse(path=path, error=self._write(path, content)) for path, content in files]

    def download_files(self, paths: list[str]) -> list[FileDownloadResponse]:
        """Read files, each for itself."""
        return [self._read(path) for path in paths]

    def _write(self, path: str, content: bytes) -> str | None:
        try:
            self.box.write(path, content)
        except (OSError, Misuse) as error:
            return _word(error)
        return None

    def _read(self, path: str) -> FileDownloadResponse:
        try:
            return FileDownloadResponse(path=path, content=self.box.read(path), error=None)
        except (OSError, Misuse) as error:
            return FileDownloadResponse(path=path, content=None, error=_word(error))

    def close(self) -> None:
        """Free the sandbox. Calling it twice is fine."""
        self.box.destroy()

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def _word(error: OSError | Misuse) -> str:
    if isinstance(error, Misuse):
        if error.field != "path":
            raise error
        return str(INVALID_PATH)
    for kind, word in (
        (FileNotFoundError, FILE_NOT_FOUND),
        (PermissionError, PERMISSION_DENIED),
        (IsADirectoryError, IS_DIRECTORY),
    ):
        if isinstance(error, kind):
            return str(word)
    return str(INVALID_PATH)
