"""What coding agents do all day works in a native sandbox: packages, builds, servers, databases, terminals.

Each script runs in a sandbox of its own under the filter and the limits that every sandbox has. A program that this machine
lacks is skipped, with the command that installs it.
"""

import asyncio
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

import dutyfree
from dutyfree.substrates.registry import find

pytestmark = [
    pytest.mark.slow("what coding agents use, under the filter"),
    pytest.mark.skipif(not find("native")[0].probe().available, reason="needs native: dutyfree doctor says why"),
]

PATH = "/usr/local/go/bin:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin"
LIMITS = dutyfree.Limits(memory_bytes=4 << 30, disk_bytes=1 << 30)

WHEEL = """
import zipfile
with zipfile.ZipFile("told-1.0-py3-none-any.whl", "w") as wheel:
    wheel.writestr("told.py", "word = 'told'\\n")
    wheel.writestr("told-1.0.dist-info/METADATA", "Metadata-Version: 2.1\\nName: told\\nVersion: 1.0\\n")
    wheel.writestr("told-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\\nRoot-Is-Purelib: true\\nTag: py3-none-any\\n")
    wheel.writestr("told-1.0.dist-info/RECORD", "told.py,,\\ntold-1.0.dist-info/METADATA,,\\ntold-1.0.dist-info/WHEEL,,\\ntold-1.0.dist-info/RECORD,,\\n")
"""

SERVER = """
import asyncio, ctypes, socket
async def main():
    async def echo(reader, writer):
        writer.write((await reader.readline()).upper()); await writer.drain(); writer.close()
    server = await asyncio.start_server(echo, "localhost", 0, reuse_port=True, backlog=1000)
    port = server.sockets[0].getsockname()[1]
    async def ask(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        writer.write(b"a%d\\n" % number)
        assert await reader.readline() == b"A%d\\n" % number
        writer.close()
    await asyncio.gather(*map(ask, range(200)))
asyncio.run(main())
assert (1, "lo") in socket.if_nameindex()
found = ctypes.c_void_p()
assert ctypes.CDLL(None).getifaddrs(ctypes.byref(found)) == 0 and found.value
assert socket.getaddrinfo("localhost", 80)
"""

POOLS = """
import multiprocessing, sqlite3, concurrent.futures, mmap
def add(number):
    with sqlite3.connect("/tmp/base", timeout=60) as base:
        base.execute("insert into one values (?)", (number,))
    return number
if __name__ == "__main__":
    sqlite3.connect("/tmp/base").execute("create table one (a)")
    with multiprocessing.Pool(8) as pool:
        pool.map(add, range(100))
    with concurrent.futures.ProcessPoolExecutor(4) as pool:
        assert sum(pool.map(add, range(10))) == 45
    assert sqlite3.connect("/tmp/base").execute("select count(*) from one").fetchone() == (110,)
    kept = [open(f"/tmp/{number}", "w") for number in range(900)]
"""

NODE = """
const os = require("os"), http = require("http"), fs = require("fs"), { execSync } = require("child_process");
if (!os.networkInterfaces().lo) throw new Error("no interface");
const watcher = fs.watch("/tmp", () => {});
const server = http.createServer((q, s) => s.end("told")).listen(0, async () => {
  const answer = await fetch(`http://127.0.0.1:${server.address().port}/`);
  if (await answer.text() !== "told") throw new Error("not told");
  execSync("true"); watcher.close(); server.close(); server.closeAllConnections();
});
"""

GO = """package main
import ("fmt"; "net"; "net/http"; "os/exec"; "testing")
func TestAll(t *testing.T) {
  found, err := net.Interfaces()
  if err != nil || len(found) == 0 { t.Fatal("no interface", err) }
  listener, err := net.Listen("tcp", "127.0.0.1:0")
  if err != nil { t.Fatal(err) }
  go http.Serve(listener, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprint(w, "told") }))
  answer, err := http.Get("http://" + listener.Addr().String())
  if err != nil || answer.StatusCode != 200 { t.Fatal(err) }
  if err := exec.Command("true").Run(); err != nil { t.Fatal(err) }
}
"""

JAVA = """
import java.net.*; import java.nio.channels.*; import java.nio.file.*; import java.util.stream.*;
public class A {
  public static void main(String[] a) throws Exception {
    if (NetworkInterface.getNetworkInterfaces() == null) throw new Exception("no interface");
    var server = com.sun.net.httpserver.HttpServer.create(new InetSocketAddress("127.0.0.1", 0), 50);
    server.createContext("/", x -> { x.sendResponseHeaders(200, 4); x.getResponseBody().write("told".getBytes()); x.close(); });
    server.start();
    var answer = new URL("http://127.0.0.1:" + server.getAddress().getPort() + "/").openStream().readAllBytes();
    if (!new String(answer).equals("told")) throw new Exception("not told");
    try (var file = FileChannel.open(Path.of("/tmp/lock"), StandardOpenOption.CREATE, StandardOpenOption.WRITE); var lock = file.lock()) {}
    Path.of("/tmp").register(FileSystems.getDefault().newWatchService(), StandardWatchEventKinds.ENTRY_CREATE);
    if (IntStream.range(0, 1_000_000).parallel().sum() != 1783293664) throw new Exception("sum");
    System.exit(0);
  }
}
"""

POSTGRES = """
export PATH="$(ls -d /usr/lib/postgresql/*/bin | tail -1):$PATH" LC_ALL=C
initdb -D /tmp/base -A trust -U me >/dev/null && pg_ctl -D /tmp/base -w -o '-k /tmp -c listen_addresses=127.0.0.1' -l /tmp/log start >/dev/null &&
psql -h 127.0.0.1 -U me postgres -c 'create table a (b int)' -c 'insert into a select generate_series(1, 100000)' -c 'create index on a (b)' &&
[ "$(psql -h /tmp -U me postgres -Atc 'set max_parallel_workers_per_gather = 2; select count(*) from a' | tail -1)" = 100000 ] &&
pg_ctl -D /tmp/base -w -m fast stop || { tail -20 /tmp/log; exit 1; }
"""

TMUX = """
tmux -f /dev/null new-session -d -x 80 -y 24 'sh' && tmux send-keys 'echo to''ld; sleep 1; tmux wait-for -S done' Enter && tmux wait-for done &&
tmux capture-pane -p | grep -x told && tmux kill-server
"""

POM = """<project><modelVersion>4.0.0</modelVersion><groupId>a</groupId><artifactId>b</artifactId><version>1</version>
<packaging>pom</packaging></project>"""

SCRIPTS = {
    "pip": ("python3", "python3-venv", None, "python3 wheel.py && python3 -m venv v && v/bin/pip install -q --no-index ./told-1.0-py3-none-any.whl && v/bin/python -c 'import told'", {"wheel.py": WHEEL}),
    "asyncio": ("python3", "python3", None, "python3 server.py", {"server.py": SERVER}),
    "processes and sqlite": ("python3", "python3", None, "python3 pools.py", {"pools.py": POOLS}),
    "npm": ("npm", "npm", None, "mkdir dep && cd dep && npm init -y >/dev/null && echo 'module.exports = 1' >index.js && cd .. && npm init -y >/dev/null && npm install --offline --no-audit --no-fund ./dep && node -e 'require(\"dep\")' && npm pkg set scripts.test='node -p 1' && npm test", {}),
    "node": ("node", "nodejs", None, "node told.js", {"told.js": NODE}),
    "go": ("go", "golang-go", None, "HOME=/work GOTOOLCHAIN=local GOFLAGS=-mod=mod go test ./...", {"go.mod": "module told\n\ngo 1.19\n", "a_test.go": GO}),
    "cargo": ("cargo", "cargo", None, "export HOME=/work USER=me; cargo init --vcs none --name told . && cargo test --offline && cargo run --offline", {}),
    "java": ("java", "default-jdk-headless", None, "java A.java", {"A.java": JAVA}),
    "maven": ("mvn", "maven", None, "cp -r maven /etc/maven && mvn -o -q -Dmaven.repo.local=/work/m2 validate", {"pom.xml": POM}),
    "gradle": ("gradle", "gradle", None, "export HOME=/work; echo 'task told { doLast { println(1) } }' >build.gradle && gradle --offline told", {}),
    "postgres": ("psql", "postgresql", "1000", POSTGRES, {}),
    "redis": ("redis-server", "redis-server", "1000", "redis-server --port 6399 --daemonize yes --dir /tmp --appendonly yes >/dev/null && for i in $(seq 50); do redis-cli -p 6399 ping && break; sleep 0.1; done && redis-cli -p 6399 set a b && redis-cli -p 6399 bgsave && redis-cli -p 6399 shutdown", {}),
    "git": ("git", "git", None, "export GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b; git init -q r && cd r && seq 1000 >a && git add a && git commit -qm 1 && git worktree add -q ../w && git clone -q --no-local . ../c && git -C ../c fsck && git gc -q && git -C ../c pull -q --rebase", {}),
    "tmux": ("tmux", "tmux", None, TMUX, {}),
    "strace": ("strace", "strace", None, "strace -f -e trace=socket -o log python3 -c 'import socket; socket.socket()' && grep -q AF_INET log", {}),
    "ip": ("ip", "iproute2", None, "ip addr | grep -q 127.0.0.1 && ip -6 addr | grep -q ::1 && ss -tln", {}),
    "chromium": ("chromium", "chromium", "1000", "HOME=/tmp /usr/lib/chromium/chromium --headless --no-sandbox --disable-gpu --user-data-dir=/tmp/c --dump-dom 'data:text/html,<p>told</p>' >/tmp/out 2>/tmp/err; grep told /tmp/out || { grep -v dbus /tmp/err >&2; exit 1; }", {}),
}  # fmt: skip
"""By name: a program, the package it is in, a user inside, what is run, and its files."""


def run_inside(script, user=None, files=None, folders=()):
    async def run():
        async with dutyfree.connect("native") as substrate, substrate.create(dutyfree.Spec(limits=LIMITS)) as box:
            await box.run("mkdir -m 777 /work")
            for name, text in (files or {}).items():
                await box.write(f"/work/{name}", text.encode())
            for folder in folders:
                await box.upload(folder, f"/work/{folder.name}")
            return await box.run(script, user=user, cwd="/work", env={"PATH": PATH}, timeout_s=150)

    return asyncio.run(run())


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", SCRIPTS)
def test_it_works_inside(name):
    program, package, user, script, files = SCRIPTS[name]
    if shutil.which(program, path=PATH) is None:
        pytest.skip(f"{program} is not on this machine: apt-get install -y {package}")
    folders = [Path("/etc/maven")] if name == "maven" else []  # its programs are links to that
    outcome = run_inside(script, user, files, folders)
    assert outcome.ok, (outcome.ending, outcome.stdout[-600:], outcome.stderr[-900:])


@pytest.mark.timeout(300)
def test_pytest_runs_tests_side_by_side_inside():
    names = ("pytest", "_pytest", "xdist", "execnet", "pluggy", "iniconfig", "packaging", "pygments")
    folders = [Path(spec.origin).parent for name in names if (spec := find_spec(name)) and spec.origin]
    modules = {"py.py": Path(find_spec("py").origin).read_text()} if find_spec("py") else {}
    if len(folders) < len(names):
        pytest.skip("pytest-xdist is not in this environment: make develop")
    tests = "import pytest\n@pytest.mark.parametrize('n', range(200))\ndef test_one(n): assert n >= 0\n"
    outcome = run_inside(
        "python3 -m pytest -q -p xdist.plugin -n 4 test_all.py", None, {"test_all.py": tests, **modules}, folders
    )
    assert b"200 passed" in outcome.stdout, (outcome.stdout[-600:], outcome.stderr[-600:])
