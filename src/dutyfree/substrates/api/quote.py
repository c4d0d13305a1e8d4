"""Words for an interface that takes text only: bytes that are not UTF-8 are spelt out for the sandbox's own shell."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dutyfree.core.errors import Misuse


def command_text(argv: Sequence[bytes]) -> list[str]:
    """The same command as text; through `sh` if a word is not UTF-8."""
    try:
        return [word.decode() for word in argv]
    except UnicodeDecodeError:
        return ["sh", "-c", f"exec {' '.join(map(shell_word, argv))}"]


def script_text(script: bytes) -> str:
    """The same script as text."""
    try:
        return script.decode()
    except UnicodeDecodeError:
        return f"eval {shell_word(script)}"


def shell_word(word: bytes) -> str:
    """One word of a script, quoted."""
    try:
        return shlex.quote(word.decode())
    except UnicodeDecodeError:
        octal = "".join(f"\\{byte:03o}" for byte in word)
        if word.endswith(b"\n"):
            raise Misuse(
                "ends in a newline and is not UTF-8: this interface cannot carry both", field="command"
            ) from None
        return f"\"$(printf '{octal}')\""
