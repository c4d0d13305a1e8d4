"""dutyfree for callers without an event loop: the same names, the same arguments, the same results.

    with blocking.connect("native") as substrate, substrate.create(Spec(image="host")) as box:
        print(box.run("echo hello").text())

Nothing is implemented twice: each method runs the asynchronous call on one loop that the connection owns, and waits for
it. Safe from many threads. A KeyboardInterrupt in the caller (or what else a signal handler raises) cancels the action,
waits until that is done, and goes on its way.
"""

from __future__ import annotations

from dutyfree.blocking.mirror import Sandbox, Substrate, connect
from dutyfree.blocking.part import Forward, Process, Shell

__all__ = ["Forward", "Process", "Sandbox", "Shell", "Substrate", "connect"]
