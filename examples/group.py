"""A group of rollouts from one start state, side by side: what GRPO-style training does all day.

.venv/bin/python examples/group.py [substrate]
"""

import asyncio
import sys
import time

import dutyfree

GROUP = 16
ATTEMPT = "import random; x = [random.random() for _ in range(1000)]; print(sum(x) > 500)"


async def rollout(substrate: dutyfree.Substrate, spec: dutyfree.Spec) -> bool:
    async with substrate.create(spec) as box:
        out = await box.run(["python3", "-c", ATTEMPT], timeout_s=20)
        return out.stdout == b"True\n"


async def main(name: str) -> None:
    wanted = {"memory_bytes": 256 << 20, "pids": 64, "disk_bytes": 64 << 20}
    async with dutyfree.connect(name) as substrate:
        offered = substrate.capabilities
        limits = dutyfree.Limits(**{key: value for key, value in wanted.items() if key in offered.limits})
        spec = dutyfree.Spec(limits=limits, network="none" if "none" in offered.networks else "host")
        begun = time.perf_counter()
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(rollout(substrate, spec)) for _ in range(GROUP)]
        elapsed_s = time.perf_counter() - begun
    rewards = [float(task.result()) for task in tasks]
    print(f"{GROUP} rollouts in {elapsed_s:.2f} s, mean reward {sum(rewards) / GROUP:.2f}")


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1] if len(sys.argv) > 1 else "native"))
