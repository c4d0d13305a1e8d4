"""Print docs/reference/configuration.md: every setting, variable, option and default (`make docs`).

Commands' options come from the parsers, settings from `core.settings`. Options of `connect` stand
here; a test asks the drivers whether they are all.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator

HEAD = """\
# Configuration: every setting, variable, option and default

Written by `make docs` from the code. An option wins over a variable, a variable over the config
file, and the file over the default.

## The config file
`~/.config/dutyfree/config.toml` (below `XDG_CONFIG_HOME` where that is set), or the file that
`DUTYFREE_CONFIG` names. An empty `DUTYFREE_CONFIG` means no file.

    substrate = "docker"            # a setting, as in the table below
    [run]                           # defaults of one command's options, by their long names
    memory = "2G"
    env = ["LANG=C.UTF-8"]          # an option that may be repeated takes a list
    [image.pull]                    # and of a verb's
    max-size = "20G"

An unknown key is refused, with the one that was meant.
"""

VARIABLES = (
    ("DUTYFREE_CONFIG", "the config file's place", "the config file; empty: none"),
    ("DUTYFREE_DEBUG", "none", "1: errors of the command line come with their traceback"),
    ("DUTYFREE_CACHE", "/var/cache/dutyfree", "where `make cluster-build` and the like keep what they build"),
    ("DUTYFREE_KUBERNETES_VERSION", "pinned in the script", "the version that `make cluster-build` builds"),
    ("DUTYFREE_AGENT_SANDBOX_VERSION", "pinned in the script", "the version that `make claims-build` builds"),
    ("DUTYFREE_CLUSTER_BUILD_JOBS, _NICE", "1, 10", "how many jobs it runs, and how nice they are"),
    ("DUTYFREE_OPENSANDBOX_VERSION, _EXECD, _PORT", "pinned in the script", "of `make opensandbox`"),
    ("DUTYFREE_TEST_CONTAINERS, _MACHINES, _KUBECONFIG", "none", "which engines the tests use; see CONTRIBUTING.md"),
    ("DUTYFREE_SANITIZE", "none", "build the C programs with sanitizers"),
    ("DUTYFREE_FAULT", "none", "fail at a named point; for the tests"),
    (
        "XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_RUNTIME_DIR",
        "as XDG says",
        "the config file, an ordinary user's store, sockets",
    ),
    ("DOCKER_HOST, CONTAINER_HOST", "the usual sockets", "the engine of `docker`, and of `image import podman:…`"),
    ("DOCKER_CONFIG, REGISTRY_AUTH_FILE", "~/.docker", "where `docker login` and `podman login` keep credentials"),
    ("KUBECONFIG", "~/.kube/config", "the cluster"),
    (
        "E2B_API_KEY, DAYTONA_API_KEY, DAYTONA_API_URL, MODAL_TOKEN_ID, MODAL_TOKEN_SECRET",
        "none",
        "the vendor's account",
    ),
    ("OPEN_SANDBOX_DOMAIN, OPEN_SANDBOX_API_KEY", "our own server", "the OpenSandbox server"),
    ("COLUMNS", "the terminal's, else 120", "the width of `dutyfree report`'s table"),
)

HOSTED = "daytona, e2b, modal, opensandbox"
ENGINES = "docker, podman"
CLUSTERS = "kubernetes, kubernetes-claim"
REMOTE = "ssh, ec2"
CONNECT = (
    ("warm:X", "sandboxes", "4096", "at most so many at once: leased, idle and on their way"),
    ("warm:X", "memory", "none", "at most so much is reserved, such as 64G"),
    ("warm:X", "idle", "64", "at most so many wait without a target"),
    ("warm:X", "demand", "yes", "keep ready what is asked for; no: targets only"),
    ("warm:X", "creations", "4 per processor", "at most so many are made at once"),
    ("warm:X", "refill", "2", "of these, at most so many for the stock"),
    ("warm:X", "queue", "10000", "at most so many wait for room"),
    ("warm:X", "wait_s", "60", "how long one waits for room"),
    ("warm:X", "stages", "none", "declarations to keep ready, with commas between them"),
    ("warm:X", "target", "1 with stages, else 0", "how many of each"),
    ("native", "cgroup", "auto", "how limits are held: auto, v1, v2 or none"),
    ("native", "stock", "4", "how many blank sandboxes are kept ready"),
    ("native", "verify", "quick", "how much of a reset is looked at: quick or full"),
    ("docker, podman, runc, gvisor, vm, " + CLUSTERS + ", " + HOSTED, "dispatch", "the first declared", "agent or api"),
    (f"{ENGINES}, kubernetes", "profile", "default", "hardened: no capabilities to speak of, a read-only root"),
    (ENGINES, "socket", "the usual ones", "the engine's"),
    (ENGINES, "runtime", "the engine's own", "an OCI runtime: its name at docker, its path at podman"),
    ("podman", "user", "who runs Python", "an ordinary user who runs a service of our own"),
    ("runc", "program", "runc", "the runtime: runc or crun"),
    ("gvisor", "platform", "systrap", "runsc's platform: systrap, ptrace or kvm"),
    ("vm, microvm", "accel", "auto", "kvm or tcg"),
    ("vm", "kernel", "none", "words to add to the kernel's command line"),
    ("microvm", "stock", "2", "how many clones are kept ready"),
    (CLUSTERS, "kubeconfig", "KUBECONFIG", "the file with the cluster"),
    (CLUSTERS, "context", "the file's own", "which of its contexts"),
    (CLUSTERS, "namespace", "the context's own", "where pods are made"),
    (CLUSTERS, "repository", "none", "put before the names of images of the local store"),
    (CLUSTERS, "ready", "poll; wait by claim", "try an exec at once, or wait for the pod's Ready"),
    ("kubernetes", "runtime_class", "none", "a RuntimeClass"),
    ("kubernetes-claim", "template", "the namespace's only one", "a SandboxTemplate"),
    ("kubernetes-claim", "pool", "one of our own", "a SandboxWarmPool that is there already"),
    ("kubernetes-claim", "warm", "0", "how many sandboxes our pool keeps ready"),
    (REMOTE, "port", "ssh's own", "the ssh server's port"),
    (REMOTE, "identity", "ssh's own", "a key file"),
    (REMOTE, "config", "ssh's own", "another ssh_config"),
    (REMOTE, "program", "ssh", "another ssh client"),
    ("ssh", "host", "must be given", "user@machine"),
    ("ec2", "image", "must be given", "a machine image: ami-…"),
    ("ec2", "type", "must be given", "an instance type"),
    ("ec2", "user", "must be given", "whom to log in as"),
    ("ec2", "key", "none", "a key pair's name"),
    ("ec2", "subnet", "the account's own", "where instances start"),
    ("ec2", "group", "the account's own", "their security group"),
    ("ec2", "region", "boto3's own", "the region"),
    ("ec2", "endpoint", "boto3's own", "another server that speaks EC2's interface"),
    ("ec2", "reach", "public", "which of an instance's addresses is used: public or private"),
    ("ec2", "address", "the instance's", "one that is used instead"),
    ("ec2", "poweroff", "yes", "an instance whose owner died ends itself"),
    (HOSTED, "ttl", "300", "how many seconds a machine outlives a client that was killed"),
    ("e2b", "template", "base", "what image `host` stands for"),
    ("daytona", "target", "the account's own", "the region"),
    ("modal", "app", "dutyfree", "the app that sandboxes belong to"),
    ("modal", "environment", "the account's own", "the account's environment"),
    ("modal", "image", "python:3.12", "what image `host` stands for"),
    ("modal", "region", "any", "the region"),
    ("opensandbox", "proxy", "no", "reach sandboxes through the server"),
)
"""Substrates, option, default, meaning. `host` and `noop` take none."""


def page() -> str:
    """The whole page."""
    from dutyfree.core.settings import SETTINGS  # noqa: PLC0415 - the tables above are also read by a test

    settings = [(f"`{one.key}`", f"`{one.variable}`", one.default, one.meaning) for one in SETTINGS]
    variables = [(f"`{name}`", default, meaning) for name, default, meaning in VARIABLES]
    connect = [(where, f"`{name}`", default, meaning) for where, name, default, meaning in CONNECT]
    return "\n".join(
        [
            HEAD,
            "## Settings, for the library too",
            *_table(("in the file", "variable", "default", "what it is"), settings),
            "## Other variables",
            *_table(("variable", "default", "what it is"), variables),
            "## Options of `connect`",
            'By keyword, as in `connect("warm:docker", sandboxes=200)`, or in the name, as in `docker?dispatch=api`.\n',
            *_table(("substrate", "option", "default", "what it is"), connect),
            "## Options of commands",
            *_commands(),
        ]
    )


def _commands() -> Iterator[str]:
    from dutyfree.cli.main import command_line, installed  # noqa: PLC0415 - as above

    parser = command_line(list(installed()))
    for name, child in parser.children.items():
        yield from _options(f"dutyfree {name}", child.known)
        for verb, leaf in child.children.items():
            yield from _options(f"dutyfree {name} {verb}", leaf.known)


def _options(title: str, actions: list[argparse.Action]) -> Iterator[str]:
    rows = [
        (", ".join(f"`{name}`" for name in action.option_strings), _default(action), _help(action))
        for action in actions
        if action.option_strings and action.dest not in ("help", "verbose")
    ]
    if rows:
        yield f"### {title}"
        yield from _table(("option", "default", "what it is"), rows)


def _default(action: argparse.Action) -> str:
    if action.required:
        return "must be given"
    if action.default in (None, [], False):
        return ""
    return f"`{action.default}`"


def _help(action: argparse.Action) -> str:
    known = {**vars(action), "prog": "dutyfree"}
    return (action.help or "") % known


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> list[str]:
    cells = [head, ("---",) * len(head), *rows]
    return ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in cells] + [""]


if __name__ == "__main__":
    os.environ["DUTYFREE_CONFIG"] = ""  # the defaults, not this machine's
    os.environ.pop("DUTYFREE_SUBSTRATE", None)
    sys.stdout.write(page())
