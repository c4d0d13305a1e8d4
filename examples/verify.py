"""A reward that the agent cannot write: its changes are judged by hidden tests, in a sandbox it never saw."""

import asyncio

import dutyfree

TASK = b"def add(a, b):\n    return a - b\n"
HIDDEN = b"""
import sys, unittest
sys.path.insert(0, "/task/src")

class Sums(unittest.TestCase):
    def test_two(self):
        from add import add
        self.assertEqual(add(1, 1), 2)

if __name__ == "__main__":
    done = unittest.main(exit=False).result
    state = "" if done.wasSuccessful() and done.testsRun == 1 else "<failure/>"
    open(sys.argv.pop(), "w").write(f'<testsuite><testcase name="test_two">{state}</testcase></testsuite>')
    sys.exit(not done.wasSuccessful())
""".replace(b"unittest.main(exit=False)", b"unittest.main(argv=sys.argv[:1], exit=False)")

CHECK = dutyfree.Check(
    command=["python3", "-I", "/task/hidden/test_add.py", "{report}"], tests=["test_two"], timeout_s=30
)


async def judged(substrate: dutyfree.Substrate, solution: bytes) -> dutyfree.Verification:
    spec = dutyfree.Spec(image="host")
    async with substrate.create(spec) as box:
        await box.write("/task/src/add.py", solution)  # what an agent does, in many steps
        await box.write("/task/conftest.py", b"raise SystemExit(0)")  # and what it should not
        return await dutyfree.verify(
            substrate, spec, box, allow=["/task/src/**"], hidden={"/task/hidden/test_add.py": HIDDEN}, checks=[CHECK]
        )


async def main() -> None:
    async with dutyfree.connect("native") as substrate:
        for name, solution in {
            "untouched": TASK,
            "exits early": b"import os\nos._exit(0)\n",
            "solved": TASK.replace(b"-", b"+"),
        }.items():
            found = await judged(substrate, solution)
            print(f"{name}: reward {float(found.passed)} {found.results[0].reason}")


asyncio.run(main())
