"""An execution as the words of an exec call, which takes no directory it can refuse and 64 Ki characters of words at most."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from dutyfree.driver.exec_call import ExecCall

NO_PLACE = 125
"""The exit code, with the token as the only error text: there is no such directory."""

MOST = 60_000
"""Characters of words; the vendor's SDK refuses more than 65,536."""

_RUN = """\
if [ -n "$1" ]; then cd -- "$1" 2>/dev/null || { printf %s "$0" >&2; exit 125; }
elif [ "$PWD" = / ]; then cd 2>/dev/null; fi
shift; exec "$@"
"""
"""Without a directory: where the image starts, else at home."""
_READ = 'eval "set -- $(head -c "$1")"; '
"""Takes the words from the input, of which it reads no byte more."""


def spoken(wanted: ExecCall, token: str) -> tuple[Sequence[str], bytes]:
    """The words, and what goes into the input before the command's own."""
    words = [wanted.cwd or "", *wanted.argv]
    if sum(map(len, words)) <= MOST:
        return ["sh", "-c", _RUN, token, *words], b""
    said = shlex.join(words).encode()
    return ["sh", "-c", _READ + _RUN, token, str(len(said))], said
