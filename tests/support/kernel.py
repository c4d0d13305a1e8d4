"""Whether this machine's kernel installs seccomp filters: without them there is no native sandbox and no container.

Compiled filters come from one table of the machine. A kernel in which that table is used up refuses new filters; one in
which the table's lock is lost (seen on Linux 6.18, after more than 1,024 filters had been freed at once) lets whoever
asks wait for ever, deaf to `kill -9`. Only a restart of the machine helps then. Run as a program, this file says so and
exits with 1.
"""

import subprocess
import sys

PATIENCE_S = 10.0
"""For one filter of one instruction, which takes a sound kernel less than a millisecond."""

_TRY = """
import ctypes, os
if os.getuid() == 0:
    os.setgid(65534), os.setuid(65534)  # root may exceed the table's limit
allow = ctypes.create_string_buffer(b"\\x06\\0\\0\\0\\0\\0\\xff\\x7f")  # BPF_RET | BPF_K, SECCOMP_RET_ALLOW
class Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
libc = ctypes.CDLL(None, use_errno=True)
libc.prctl(38, 1, 0, 0, 0)  # PR_SET_NO_NEW_PRIVS
if libc.prctl(22, 2, ctypes.byref(Program(1, ctypes.addressof(allow))), 0, 0):  # PR_SET_SECCOMP, filter
    raise SystemExit(f"errno {ctypes.get_errno()}")
"""


def no_filters() -> str | None:
    """Say why a process on this machine can install no filter; None where it can."""
    attempt = subprocess.Popen([sys.executable, "-c", _TRY], stderr=subprocess.PIPE, text=True)
    try:
        said = attempt.communicate(timeout=PATIENCE_S)[1].strip()
    except subprocess.TimeoutExpired:
        said = f"no answer within {PATIENCE_S:.0f} s"
        attempt.kill()  # and not waited for: it may never end
    return f"this kernel installs no seccomp filter ({said}); restart the machine" if said else None


if __name__ == "__main__":
    sys.exit(no_filters())
