"""Stores a directory as an image and prints its files; the number-th file operation fails, or ends the process.

python storing.py DIRECTORY NUMBER ERRNO|kill|none          exit 3: the fault was reported
"""

import errno
import os
import signal
import sys
from pathlib import Path

from dutyfree.core.errors import DutyfreeError
from dutyfree.image.intake import import_directory
from dutyfree.image.store import Store

EVENTS = {
    "open",
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.chmod",
    "os.chown",
    "os.scandir",
}


def arm(left, what, home):
    def hook(event, arguments):
        if event not in EVENTS or not any(home in str(word) for word in arguments):
            return
        left[0] -= 1
        if left[0] == 0:
            if what == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            raise OSError(getattr(errno, what), os.strerror(getattr(errno, what)))

    sys.addaudithook(hook)


def main():
    directory, number, what = Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    store = Store.default()
    left = [number]
    arm(left, what, str(store.root))
    try:
        manifest = import_directory(store, directory)
    except (DutyfreeError, OSError):
        return 3
    left[0] = 0  # what follows only looks
    assert store.images.hold(manifest.key)
    for path in sorted(store.layers.path(manifest.layers[0]).joinpath("d").iterdir()):
        sys.stdout.write(path.read_text() + "\n")
    store.images.sweep()
    store.close()
    assert not list((store.root / "building").glob("*")), "a half-built image is left"
    return 0


sys.exit(main())
