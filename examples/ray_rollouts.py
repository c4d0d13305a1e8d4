"""Rollouts on a Ray cluster: one actor per node with a pool of its own, and each rollout goes where its start state is.

pip install ray
python examples/ray_rollouts.py [substrate] [--nodes 3]        # --nodes: a cluster of so many nodes on this machine
"""

import argparse
import asyncio
import time
from collections import Counter

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

import dutyfree

TASKS, ROLLOUTS = 6, 48


def start_of(task: int) -> dutyfree.Spec:
    """What a trainer would clone and install: here a file that names the task."""
    return dutyfree.Spec(stages=(dutyfree.Commands(commands=[f"mkdir -p /srv && echo task {task} >/srv/task"]),))


@ray.remote(num_cpus=0, max_concurrency=1000)
class Node:
    """A node's sandboxes. It takes no processor of Ray's: sandboxes have limits of their own, and actors would queue."""

    async def connect(self, name: str) -> str:
        pool = await dutyfree.connect(f"warm:{name}")
        # A substrate without snapshots has no stages: the same commands are then part of each rollout.
        self.staged = pool.capabilities.stages
        self.substrate = pool
        if not self.staged:
            await pool.close()
            self.substrate = await dutyfree.connect(name)
        return ray.get_runtime_context().get_node_id()

    async def rollout(self, task: int) -> float:
        """One sandbox from its start state to its reward. What fails in the machinery raises, and is no reward of 0."""
        spec = start_of(task) if self.staged else dutyfree.Spec()
        async with self.substrate.create(spec) as box:
            place = "/srv" if self.staged else "."
            if not self.staged:
                await box.run(f"echo task {task} >task")
            await box.run(f"sed 's/task/solved/' {place}/task >answer", timeout_s=20)
            return float((await box.run("cat answer", timeout_s=20)).stdout == f"solved {task}\n".encode())

    async def close(self) -> None:
        await self.substrate.close()


class Router:
    """Sends a rollout to the least busy of the nodes that have its start state; a busy cluster builds it on one more."""

    def __init__(self, nodes: dict[str, ray.actor.ActorHandle]) -> None:
        self.nodes = nodes
        self.busy: Counter[str] = Counter(dict.fromkeys(nodes, 0))
        self.homes: dict[int, set[str]] = {}

    def choose(self, task: int) -> str:
        idle = min(self.nodes, key=self.busy.__getitem__)
        home = min(self.homes.setdefault(task, {idle}), key=self.busy.__getitem__)
        if self.busy[home] > 2 * self.busy[idle] + 4:
            self.homes[task].add(idle)
            return idle
        return home

    async def rollout(self, task: int) -> tuple[str, float]:
        node = self.choose(task)
        self.busy[node] += 1
        try:
            return node, await self.nodes[node].rollout.remote(task)
        finally:
            self.busy[node] -= 1


async def main(name: str) -> None:
    nodes = {}
    for found in ray.nodes():
        if found["Alive"]:
            here = NodeAffinitySchedulingStrategy(found["NodeID"], soft=False)
            actor = Node.options(name=f"dutyfree-{found['NodeID']}", scheduling_strategy=here).remote()
            nodes[await actor.connect.remote(name)] = actor
    router = Router(nodes)
    begun = time.perf_counter()
    done = await asyncio.gather(*(router.rollout(n % TASKS) for n in range(ROLLOUTS)))
    elapsed_s = time.perf_counter() - begun
    for number, (node, count) in enumerate(Counter(node for node, _ in done).most_common(), 1):
        has = sorted(task for task, homes in router.homes.items() if node in homes)
        print(f"node {number}: {count} rollouts, start states {has}")
    mean = sum(reward for _, reward in done) / ROLLOUTS
    print(f"{ROLLOUTS} rollouts on {len(nodes)} nodes in {elapsed_s:.2f} s, mean reward {mean:.2f}")
    await asyncio.gather(*(actor.close.remote() for actor in nodes.values()))


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("substrate", nargs="?", default="native")
    parser.add_argument("--nodes", type=int, default=0)
    given = parser.parse_args()
    if given.nodes:
        from ray.cluster_utils import Cluster

        cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1})
        for _ in range(given.nodes - 1):
            cluster.add_node(num_cpus=1)
        ray.init(address=cluster.address, log_to_driver=False)
    else:
        ray.init(log_to_driver=False)
    asyncio.run(main(given.substrate))
    ray.shutdown()
    if given.nodes:
        cluster.shutdown()
