"""One sandbox, a few actions: what an agent's tools need.

.venv/bin/python examples/quickstart.py [substrate]
"""

import asyncio
import sys

import dutyfree


async def main(name: str) -> None:
    async with dutyfree.connect(name) as substrate, substrate.create() as box:
        home = (await box.run("pwd")).text().strip()
        await box.write(f"{home}/add.py", b"def add(a, b):\n    return a - b\n")
        await box.write(f"{home}/check.py", b"from add import add\nassert add(2, 2) == 4, add(2, 2)\n")
        before = await box.run(["python3", "check.py"], timeout_s=20)
        print("before the fix:", before.ending, before.exit_code, before.stderr.splitlines()[-1].decode())
        await box.run("sed -i 's/a - b/sum((a, b))/' add.py")
        after = await box.run(["python3", "check.py"], timeout_s=20)
        print("after the fix: ", after.ending, after.exit_code, f"({after.total_ns / 1e6:.1f} ms)")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "native"))
