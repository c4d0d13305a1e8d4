"""The image "host" shows the host's directories, those mounted below them too, and as overlays of the sandbox's own."""

import os
import subprocess
import sys

import pytest

MOUNT = """
set -e
mount -t tmpfs -o mode=755 below /usr/share
mkdir /usr/share/inner /usr/share/closed
mount -t tmpfs -o mode=755 inner /usr/share/inner
echo shown > /usr/share/inner/file
chmod 700 /usr/share/closed
mkdir /usr/share/closed/deep
mount -t tmpfs -o mode=755 deep /usr/share/closed/deep
"""
LOOK = """
import asyncio, dutyfree
async def main():
    async with dutyfree.connect("native") as substrate, substrate.create(dutyfree.Spec(image="host")) as box:
        for words in (["cat", "/usr/share/inner/file"], ["ls", "/usr/share/closed"], ["grep", "-c", " /usr.* overlay ", "/proc/self/mountinfo"]):
            outcome = await box.run(words)
            print(outcome.ok, outcome.stdout.decode().split())
asyncio.run(main())
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount: sudo make test")
def test_what_is_mounted_below_usr_is_shown_where_everybody_may_go(tmp_path):
    words = ["unshare", "--mount", "bash", "-c", f'{MOUNT}\nexec "$0" -c "$1"', sys.executable, LOOK]
    done = subprocess.run(
        words, capture_output=True, text=True, check=False, env={**os.environ, "DUTYFREE_HOME": str(tmp_path)}
    )
    assert done.stdout.splitlines() == ["True ['shown']", "False []", "True ['3']"], done.stderr
