"""Our agent over one exec call: for vendors whose exec calls carry bytes, both ways, while they run."""

from __future__ import annotations

from dutyfree.driver.agent_by_exec import ExecStream, agent_by_exec
from dutyfree.driver.exec_call import Execute
from dutyfree.guest.sandbox import AgentSandbox
from dutyfree.substrates.boot import Birth, boot_agent


async def boot_by_exec(birth: Birth, execute: Execute, program: str | None = None) -> AgentSandbox:
    """Start the agent and take over its stream; on failure or cancellation everything is released.

    `program` is its path where every machine has it; None: it goes ahead of the stream, and is put there.
    """
    call = ExecStream(execute, [program]) if program else agent_by_exec(execute, driver=birth.driver)
    end = birth.release

    async def release() -> None:
        await call.close()
        await end()

    birth.release = release
    birth.failure = call.cause
    box: AgentSandbox = await boot_agent(birth, call.stream)
    call.after(box.destroy)
    return box
