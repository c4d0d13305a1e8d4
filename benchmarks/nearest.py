"""Nearest state against round robin for real: 20 states, 200 rollouts, small nodes on this machine; and what the simulator says.

    python -m benchmarks.nearest [--nodes 8] [--rollouts 200] [--group 1] [--in-flight 4] [--seed 1] [--json FILE]

A node is a native substrate of its own that runs two rollouts at once and keeps the layers (snapshots) it has built; nodes
exchange nothing. A state is image -> repository (4 of them) -> task (20). Rollouts ask by Zipf's law, one by one (`--group`), and
four (`--in-flight`) are under way at any time. Both policies see the same requests; costs are learned as they go. The simulator then
gets the medians of the stages that were built, and the same requests.
"""

import argparse
import asyncio
import json
import statistics
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

import dutyfree
from dutyfree.core.timeline import now_ns
from dutyfree.warm.baseline import RoundRobin
from dutyfree.warm.cost import LearnedCosts, Priors
from dutyfree.warm.nearest import LayerSet, Node, Request, choose, queue_wait_s
from dutyfree.warm.simulate.engine import simulate
from dutyfree.warm.simulate.scenario import Scenario, Stage
from dutyfree.warm.simulate.workload import States, Workload, draw

REPOSITORIES, TASKS, SLOTS = 4, 20, 2
RUN_S = 0.2
BOUND = 2.0
RECIPES = {
    "repository": "mkdir -p /srv/repo && cd /srv/repo && for i in $(seq 12); do python3 -c 'print(1)' > f$i.py; done",
    "task": "mkdir -p /srv/task && cd /srv/task && for i in $(seq 4); do python3 -c 'print(2)' > t$i.py; done",
}


def seconds_since(begin_ns):
    return (now_ns() - begin_ns) / 1e9


@dataclass
class Machine:
    """One node: what it runs, what it keeps."""

    id: str
    substrate: dutyfree.Substrate
    images: dict = field(default_factory=lambda: {("host",): "host"})
    building: dict = field(default_factory=dict)
    gate: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(SLOTS))
    ends_s: dict = field(default_factory=dict)
    queued: int = 0

    def node(self, now_s):
        """As the policies see it."""
        ends = [end - now_s for end in self.ends_s.values()]
        wait_s = queue_wait_s(slots=SLOTS, ends_in_s=ends, queued=self.queued, run_s=RUN_S)
        return Node(id=self.id, wait_s=wait_s, load=len(ends) + self.queued)

    async def image(self, state, costs):
        """The image of a state, built once on this node from its parent."""
        if state in self.images:
            return self.images[state]
        async with self.building.setdefault(state, asyncio.Lock()):
            if state not in self.images:
                parent = await self.image(state[:-1], costs)
                begin = now_ns()
                async with self.substrate.create(dutyfree.Spec(image=parent)) as box:
                    out = await box.run(RECIPES["repository" if len(state) == 2 else "task"])
                    assert out.ok, out.stderr
                    snapshot = await box.snapshot()
                costs.seen("stage", seconds_since(begin), key=state[-1], node=self.id)
                self.images[state] = snapshot.image
        return self.images[state]


class Fleet:
    """All nodes under one policy, and what its rollouts paid."""

    def __init__(self, machines, policy):
        self.machines = {machine.id: machine for machine in machines}
        self.policy = policy
        self.costs = LearnedCosts(Priors(stage_s=0.5))
        self.begin_ns = now_ns()
        self.ready_s, self.waits_s, self.hits = [], [], 0

    async def rollout(self, number, want):
        """Ask, wait, get ready, run."""
        asked = now_ns()
        now_s = seconds_since(self.begin_ns)
        layers = [LayerSet(state=s, node=m.id) for m in self.machines.values() for s in m.images]
        layers += [
            LayerSet(state=s, node=m.id, ready_in_s=sum(self.costs.stage_s(key, m.id) for key in s[1:]))
            for m in self.machines.values()
            for s, lock in m.building.items()
            if lock.locked()
        ]
        nodes = [machine.node(now_s) for machine in self.machines.values()]
        machine = self.machines[self.policy(Request(want=want), [], layers, nodes, self.costs).node]
        machine.queued += 1
        async with machine.gate:
            machine.queued -= 1
            self.waits_s.append(seconds_since(asked))
            machine.ends_s[number] = seconds_since(self.begin_ns) + RUN_S
            begin = now_ns()
            self.hits += want in machine.images
            try:
                image = await machine.image(want, self.costs)
                async with machine.substrate.create(dutyfree.Spec(image=image)) as box:
                    self.ready_s.append(seconds_since(begin))
                    out = await box.run(f"test -e /srv/task/t1.py && sleep {RUN_S}")
                    assert out.ok, out.stderr
            finally:
                del machine.ends_s[number]


def chain(task):
    return ("host", f"repo{task % REPOSITORIES}", f"task{task}")


async def work(fleet, requests, size):
    for group, task in requests:
        async with asyncio.TaskGroup() as together:
            for i in range(size):
                together.create_task(fleet.rollout(group * size + i, chain(task)))


async def run(policy, tasks, args):
    async with AsyncExitStack() as stack:
        machines = [
            Machine(id=f"{i:02}", substrate=await stack.enter_async_context(dutyfree.connect("native")))
            for i in range(args.nodes)
        ]
        fleet = Fleet(machines, policy)
        requests = enumerate(tasks)
        async with asyncio.TaskGroup() as workers:
            for _ in range(args.in_flight):
                workers.create_task(work(fleet, requests, args.group))
        fleet.makespan_s = seconds_since(fleet.begin_ns)
        return fleet


def predict(tasks, args, stage_s, create_s, policy):
    """The same requests in the simulator, with the medians that were measured."""
    stages = (Stage(name="image", seconds=0.0, megabytes=0), Stage(name="repository", seconds=stage_s[0]))
    scenario = Scenario(
        nodes=args.nodes, slots=SLOTS, tasks=TASKS, groups=len(tasks), group=args.group, in_flight=args.in_flight, run_s=RUN_S, run_spread=0,
        noise=0, idle=0, create_s=create_s, reset_s=0, stages=(*stages, Stage(name="task", seconds=stage_s[1])),
    )  # fmt: skip
    count = 1 + REPOSITORIES + TASKS
    states = States(
        level=[0] + [1] * REPOSITORIES + [2] * TASKS,
        seconds=[0.0] + [stage_s[0]] * REPOSITORIES + [stage_s[1]] * TASKS,
        megabytes=[0.0] * count,
        chains=[(0, 1 + task % REPOSITORIES, 1 + REPOSITORIES + task) for task in range(TASKS)],
    )
    work = Workload(states=states, tasks=tasks, arrivals_s=None, runs_s=[RUN_S] * scenario.rollouts, noise=[1.0])
    return simulate(scenario, work, policy)


def median_stage(fleets, prefix):
    known = [
        fleet.costs.stage_s(state[-1], machine.id)
        for fleet in fleets
        for machine in fleet.machines.values()
        for state in machine.images
        if state[-1].startswith(prefix)
    ]
    return statistics.median(known)


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--nodes", type=int, default=8)
    parser.add_argument("--rollouts", type=int, default=200)
    parser.add_argument("--group", type=int, default=1)
    parser.add_argument("--in-flight", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    tasks = draw(Scenario(tasks=TASKS, groups=args.rollouts // args.group, group=args.group), args.seed).tasks
    policies = {"round-robin": RoundRobin(), "nearest": choose}
    fleets = {name: asyncio.run(run(policy, tasks, args)) for name, policy in policies.items()}
    stage_s = [median_stage(fleets.values(), prefix) for prefix in ("repo", "task")]
    create_s = min(statistics.quantiles(fleet.ready_s, n=20)[0] for fleet in fleets.values())
    print(f"stages: repository {stage_s[0]:.3f} s, task {stage_s[1]:.3f} s; create {create_s * 1e3:.1f} ms")
    rows = {}
    for name, fleet in fleets.items():
        said = predict(tasks, args, stage_s, create_s, name)
        rows[name] = {"real_s": sum(fleet.ready_s), "simulated_s": sum(said.ready_s), "hits": fleet.hits,
                      "simulated_hits": said.hits, "makespan_s": fleet.makespan_s, "simulated_makespan_s": said.makespan_s,
                      "wait_s": sum(fleet.waits_s), "simulated_wait_s": sum(said.waits_s)}  # fmt: skip
        print(name, json.dumps({key: round(value, 2) for key, value in rows[name].items()}))
    ratio = {kind: rows["round-robin"][kind] / rows["nearest"][kind] for kind in ("real_s", "simulated_s")}
    verdict = "reached" if ratio["real_s"] >= BOUND else "missed"
    print(f"readiness: {ratio['real_s']:.2f} x less by nearest (bound {BOUND:g}: {verdict}); ", end="")
    print(f"simulator: {ratio['simulated_s']:.2f} x")
    if args.json:
        args.json.write_text(json.dumps({"policies": rows, "ratio": ratio, "seed": args.seed}, indent=1) + "\n")


if __name__ == "__main__":
    main()
