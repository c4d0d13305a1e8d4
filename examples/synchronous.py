"""The same without an event loop, and a shell that remembers where it is.

.venv/bin/python examples/synchronous.py
"""

from dutyfree import blocking


def main() -> None:
    with blocking.connect("native") as substrate, substrate.create() as box, box.shell() as shell:
        shell.run("mkdir -p /tmp/work && cd /tmp/work && export GREETING=hello")
        shell.run('greet() { echo "$GREETING from $(pwd)"; }')
        print(shell.run("greet").text().strip())
        stuck = shell.run("sleep 60", timeout_s=0.2)
        print("a stuck command:", stuck.ending, "- the shell is", "alive" if shell.alive else "gone")
        print(shell.run("greet").text().strip())


if __name__ == "__main__":
    main()
