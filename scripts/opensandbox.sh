#!/bin/bash
# The vendor's own OpenSandbox server on this machine's Docker engine, or its end.
#
#   scripts/opensandbox.sh start    as root, after `make setup` and `make substrates`; does only what is missing, says what it did
#   scripts/opensandbox.sh stop     ends the server, its sandboxes and their network; the installed server and images stay
#
# The server is installed from PyPI in an environment of its own, below DUTYFREE_CACHE. It and the ports of its sandboxes
# listen on loopback; its key is made at each start and readable by root only. It copies a program, execd, out of an image of
# the vendor's into every sandbox. That image is taken from the engine, else from an archive that was put beside the
# server (execd.tar, as `docker save` writes it), else from a registry. Decision 049.
set -euo pipefail

VERSION=${DUTYFREE_OPENSANDBOX_VERSION:-1.1.1}
EXECD=${DUTYFREE_OPENSANDBOX_EXECD:-opensandbox/execd:v1.1.0}
PORT=${DUTYFREE_OPENSANDBOX_PORT:-18090}
CACHE=${DUTYFREE_CACHE:-/var/cache/dutyfree}/opensandbox-$VERSION
RUN=/run/dutyfree/opensandbox
NETWORK=dutyfree-opensandbox
LABEL=opensandbox.io/id
HERE=$(cd "$(dirname "$0")" && pwd)
DUTYFREE="$HERE/../.venv/bin/dutyfree"

say() { echo "opensandbox: $*"; }

fail() {
    say "$*" >&2
    exit 1
}

# DOCKER_HOST's if that is set, else the machine's own engine, else the one of `make substrates`: as the docker driver does.
find_engine() {
    local path paths=(/var/run/docker.sock /run/dutyfree/docker/docker.sock)
    [ -z "${DOCKER_HOST:-}" ] || paths=("${DOCKER_HOST#unix://}")
    for path in "${paths[@]}"; do
        if curl -s -o /dev/null --max-time 5 --unix-socket "$path" http://engine/_ping; then
            export DOCKER_HOST="unix://$path"
            return
        fi
    done
    return 1
}

answers() { curl -s -f -o /dev/null --max-time 5 "http://127.0.0.1:$PORT/health"; }

# The process that was started, if it is that: after a restart of the machine the number may be another's.
server() {
    local pid
    pid=$(cat "$RUN/pid" 2>/dev/null) && grep -qsF opensandbox-server "/proc/$pid/cmdline" && echo "$pid"
}

install_server() {
    if [ -x "$CACHE/bin/opensandbox-server" ]; then
        say "opensandbox-server $VERSION is there"
        return
    fi
    say "installing opensandbox-server $VERSION in $CACHE"
    rm -rf "$CACHE/bin" "$CACHE/lib"
    python3 -m venv "$CACHE"
    "$CACHE/bin/pip" install --quiet --disable-pip-version-check "opensandbox-server==$VERSION" || {
        rm -rf "$CACHE/bin" "$CACHE/lib"
        fail "cannot install it"
    }
}

provide_execd() {
    if docker image inspect "$EXECD" >/dev/null 2>&1; then
        say "image $EXECD is there"
    elif [ -e "$CACHE/execd.tar" ]; then
        docker load --quiet --input "$CACHE/execd.tar" >/dev/null
        docker image inspect "$EXECD" >/dev/null 2>&1 || fail "$CACHE/execd.tar holds no image $EXECD"
        say "loaded image $EXECD from $CACHE/execd.tar"
    elif timeout 300 docker pull --quiet "$EXECD" >/dev/null 2>&1; then
        say "pulled image $EXECD"
    else
        fail "image $EXECD is neither in the engine nor to be had from a registry: the server can start no sandbox without" \
            "it. On a machine that has it: docker save -o execd.tar $EXECD; then put that file in $CACHE"
    fi
}

# Under a name that no registry answers to: a server that lacks it says so, and does not ask the world for it.
provide_bench() {
    local scratch name
    scratch=$(mktemp -d)
    "$DUTYFREE" image export bench -o "$scratch/bench.tar" >"$scratch/said" || {
        rm -rf "$scratch"
        fail "there is no image bench: $DUTYFREE image build bench"
    }
    name=$(awk '{ print $NF }' "$scratch/said")
    if docker image inspect "localhost/$name" >/dev/null 2>&1; then
        say "image localhost/$name is there"
    else
        docker load --quiet --input "$scratch/bench.tar" >/dev/null
        docker tag "$name" "localhost/$name"
        say "loaded image localhost/$name"
    fi
    rm -rf "$scratch"
}

# Our own engine has no bridge, and a server needs one to reach its sandboxes. Nothing is masqueraded: they see this machine
# and each other, and nothing beyond.
make_network() {
    docker network inspect "$NETWORK" >/dev/null 2>&1 || {
        docker network create --driver bridge --opt com.docker.network.bridge.enable_ip_masquerade=false "$NETWORK" >/dev/null
        say "made network $NETWORK"
    }
}

write_config() {
    local key
    key=$(od -An -N24 -tx1 /dev/urandom | tr -d ' \n')
    cat >"$RUN/config.toml" <<-CONFIG
	[server]
	host = "127.0.0.1"
	port = $PORT
	api_key = "$key"
	[log]
	level = "WARNING"
	[runtime]
	type = "docker"
	execd_image = "$EXECD"
	[store]
	type = "sqlite"
	path = "$RUN/home/opensandbox.db"
	[docker]
	network_mode = "$NETWORK"
	publish_host = "127.0.0.1"
	port_range_min = 20000
	port_range_max = 29999
	[ingress]
	mode = "direct"
	CONFIG
    printf 'OPEN_SANDBOX_DOMAIN=127.0.0.1:%s\nOPEN_SANDBOX_API_KEY=%s\n' "$PORT" "$key" >"$RUN/environment"
}

start() {
    [ "$(id -u)" = 0 ] || fail "needs root: sudo make opensandbox"
    if server >/dev/null && answers; then
        say "it is up: $RUN/environment"
        return
    fi
    [ -x "$DUTYFREE" ] || fail "needs make setup"
    command -v docker >/dev/null || fail "needs Docker's client: make substrates"
    find_engine || fail "no Docker engine answers: make substrates"
    answers && fail "something else answers at port $PORT: DUTYFREE_OPENSANDBOX_PORT=… make opensandbox"
    stop >/dev/null
    umask 077
    install_server
    provide_execd
    provide_bench
    make_network
    mkdir -p "$RUN/home"
    write_config
    HOME="$RUN/home" setsid "$CACHE/bin/opensandbox-server" --config "$RUN/config.toml" >"$RUN/log" 2>&1 </dev/null &
    echo $! >"$RUN/pid"
    for _ in $(seq 600); do
        if answers; then
            say "started opensandbox-server at 127.0.0.1:$PORT; its address and key: $RUN/environment"
            return
        fi
        server >/dev/null || break
        sleep 0.1
    done
    tail -n 5 "$RUN/log" >&2
    stop >/dev/null
    fail "the server did not start"
}

stop() {
    [ "$(id -u)" = 0 ] || fail "needs root: sudo make opensandbox-stop"
    local pid
    if pid=$(server); then
        kill "$pid"
        timeout 30 tail --pid="$pid" -f /dev/null || kill -9 "$pid"
        say "stopped opensandbox-server"
    else
        say "no server of ours is running"
    fi
    if find_engine; then
        docker ps -aq --filter "label=$LABEL" --filter "network=$NETWORK" | xargs -r docker rm -f >/dev/null
        if docker network inspect "$NETWORK" >/dev/null 2>&1; then docker network rm "$NETWORK" >/dev/null; fi
    fi
    rm -rf "$RUN"
}

case "${1:-}" in
    start | stop) "$1" ;;
    *) fail "usage: opensandbox.sh start|stop" ;;
esac
