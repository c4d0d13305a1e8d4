"""Two rollouts of one task, each with its reward."""

import asyncio

import dutyfree

HIDDEN = b"from solution import add\nassert add(2, 2) == 4 and add(-1, 1) == 0\n"  # the agent never sees this
CHECK = dutyfree.Check(command=["python3", "-B", "/task/hidden.py"], timeout_s=10)


async def rollout(substrate: dutyfree.Substrate, actions: list[str]) -> dutyfree.Verification:
    """Give the actions to a fresh sandbox, and judge what they left behind in another one."""
    async with substrate.create() as box:
        await box.write("/task/solution.py", b"def add(a, b):\n    return a - b\n")  # the task: a bug
        for action in actions:  # a model would choose them
            out = await box.run(action, timeout_s=10, cwd="/task")
            print(f"$ {action}  ({out.ending} {out.exit_code}, {out.total_ns / 1e6:.1f} ms)\n{out.text()}", end="")
        allowed, hidden = ["/task/solution.py"], {"/task/hidden.py": HIDDEN}
        return await dutyfree.verify(substrate, box.spec, box, allow=allowed, hidden=hidden, checks=[CHECK])


async def main() -> None:
    """Try nothing, then the fix."""
    async with dutyfree.connect() as substrate:
        for actions in (["cat solution.py"], ["sed -i 's/a - b/a + b/' solution.py", "cat solution.py"]):
            print("reward:", float((await rollout(substrate, actions)).passed))


if __name__ == "__main__":
    asyncio.run(main())
