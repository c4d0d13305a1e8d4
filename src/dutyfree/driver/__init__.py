"""The driver kit: everything that is the same in all drivers. A driver's author reads this room and no other.

    class Container(kit.Body):          # what stands behind one sandbox: start, execute (or agent), remove
    class Engine(kit.Backend):          # what all sandboxes of one connection share: body, sweep, close
    await kit.DriverSubstrate.open(Engine())

`examples/driver.py` is a whole driver; `docs/guide/write-a-driver.md` explains it. The kit owns the life of sandboxes:
names, clocks, spans, states, files by exec and deadlines. A failure or a cancellation leaves nothing behind.
"""

from dutyfree.core.pending import completed
from dutyfree.driver.agent import AGENT_INSIDE, AgentSandbox, agent_program
from dutyfree.driver.agent_by_exec import ExecStream, agent_by_exec
from dutyfree.driver.backend import AgentStream, Backend, Body, ImageDefaults, Order, State, StateStore
from dutyfree.driver.exec import HOLD_COMMAND, HOLD_PROCESSES, ExecSandbox
from dutyfree.driver.exec_call import STDERR, STDOUT, ExecCall, ExecEnd, Execute, Sink
from dutyfree.driver.exec_command import exec_flags, refusal_of
from dutyfree.driver.exec_file import FilesByRun
from dutyfree.driver.offer import EXEC_NOTES, capabilities_for, check_offered, strictest_network
from dutyfree.driver.options import read_options
from dutyfree.driver.owner import OWNER_LABEL, is_orphan, owner_mark
from dutyfree.driver.program import ProgramEnd, poll, run_program, stream_program
from dutyfree.driver.proxy import SandboxProxy
from dutyfree.driver.sandbox import DriverSandbox
from dutyfree.driver.state import StateKeeper, StateSnapshot
from dutyfree.driver.substrate import DriverSubstrate

__all__ = [
    "AGENT_INSIDE",
    "EXEC_NOTES",
    "HOLD_COMMAND",
    "HOLD_PROCESSES",
    "OWNER_LABEL",
    "STDERR",
    "STDOUT",
    "AgentSandbox",
    "AgentStream",
    "Backend",
    "Body",
    "DriverSandbox",
    "DriverSubstrate",
    "ExecCall",
    "ExecEnd",
    "ExecSandbox",
    "ExecStream",
    "Execute",
    "FilesByRun",
    "ImageDefaults",
    "Order",
    "ProgramEnd",
    "SandboxProxy",
    "Sink",
    "State",
    "StateKeeper",
    "StateSnapshot",
    "StateStore",
    "agent_by_exec",
    "agent_program",
    "capabilities_for",
    "check_offered",
    "completed",
    "exec_flags",
    "is_orphan",
    "owner_mark",
    "poll",
    "read_options",
    "refusal_of",
    "run_program",
    "stream_program",
    "strictest_network",
]
