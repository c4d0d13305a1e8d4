#!/bin/bash
# A real one-node Kubernetes on this machine, or its end without a trace.
#
#   scripts/cluster.sh start    as root on Debian, after `make cluster-build`; says what it does
#   scripts/cluster.sh stop     ends every process of it and removes every file of it
#
# All of it runs in a process and a mount namespace of its own (cluster-inside.sh), listens on loopback only, and keeps its
# files in one directory. So its end is the kernel's: with the namespace's first process go all others, every mount and
# every network namespace. Outside are that directory, a symlink to it, and cgroups named dutyfree-cluster. Decision 046.
set -euo pipefail

VERSION="${DUTYFREE_KUBERNETES_VERSION:-1.34.4}"
BINARIES="${DUTYFREE_CACHE:-/var/cache/dutyfree}/kubernetes-v$VERSION/bin"
# agent-sandbox's controller is started as well where `make claims-build` was run.
CLAIMS="${DUTYFREE_CACHE:-/var/cache/dutyfree}/agent-sandbox-v${DUTYFREE_AGENT_SANDBOX_VERSION:-0.5.6}"
KEPT="${DUTYFREE_HOME:-/var/lib/dutyfree}/cluster"
RUN=/run/dutyfree/cluster
GROUP=dutyfree-cluster
HERE=$(cd "$(dirname "$0")" && pwd)
DUTYFREE="$HERE/../.venv/bin/dutyfree"
# The kubelet and containerd have these paths built in: inside they are ours, outside they only have to be there.
export MOUNT_POINTS="/var/lib/kubelet /var/lib/cni /var/log/pods /var/log/containers"

say() { echo "cluster: $*"; }

fail() {
    say "$*" >&2
    exit 1
}

install_packages() {
    local missing=() program package
    for pair in etcd:etcd-server containerd:containerd runc:runc openssl:openssl; do
        program=${pair%%:*} package=${pair##*:}
        command -v "$program" >/dev/null || missing+=("$package")
    done
    [ -x /usr/lib/cni/loopback ] || missing+=(containernetworking-plugins)
    [ ${#missing[@]} -gt 0 ] || return 0
    say "installing ${missing[*]}"
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null
}

# One authority, one certificate: etcd, the API server and its way to the kubelet.
make_keys() {
    local keys="$KEPT/keys"
    mkdir -p "$keys"
    cat >"$keys/names" <<-NAMES
	basicConstraints=critical,CA:FALSE
	keyUsage=critical,digitalSignature
	extendedKeyUsage=serverAuth,clientAuth
	subjectKeyIdentifier=hash
	authorityKeyIdentifier=keyid
	subjectAltName=IP:127.0.0.1,DNS:localhost
	NAMES
    openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 3650 -subj "/CN=dutyfree cluster" \
        -addext keyUsage=critical,keyCertSign,cRLSign -keyout "$keys/ca.key" -out "$keys/ca.crt" 2>/dev/null
    openssl req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj "/O=system:masters/CN=dutyfree-cluster" \
        -keyout "$keys/own.key" -out "$keys/own.csr" 2>/dev/null
    openssl x509 -req -in "$keys/own.csr" -CA "$keys/ca.crt" -CAkey "$keys/ca.key" -CAcreateserial -days 3650 \
        -extfile "$keys/names" -out "$keys/own.crt" 2>/dev/null
    openssl genrsa -out "$keys/accounts.key" 2048 2>/dev/null
    local admin user
    admin=$(openssl rand -hex 24) user=$(openssl rand -hex 24)
    printf '%s,admin,admin,system:masters\n%s,dutyfree,dutyfree\n' "$admin" "$user" >"$keys/tokens"
    write_kubeconfig "$KEPT/admin.kubeconfig" "$admin" default
    write_kubeconfig "$KEPT/kubeconfig" "$user" dutyfree
}

write_kubeconfig() { # path, token, namespace
    cat >"$1" <<-CONFIG
	apiVersion: v1
	kind: Config
	clusters: [{name: dutyfree, cluster: {server: "https://127.0.0.1:16443", certificate-authority: $KEPT/keys/ca.crt}}]
	users: [{name: dutyfree, user: {token: $2}}]
	contexts: [{name: dutyfree, context: {cluster: dutyfree, user: dutyfree, namespace: $3}}]
	current-context: dutyfree
	CONFIG
}

# The process that made the namespaces, if it is that: after a restart of the machine the number may be another's.
outer() {
    local pid
    pid=$(cat "$KEPT/outer" 2>/dev/null) && grep -qsF cluster-inside.sh "/proc/$pid/cmdline" && echo "$pid"
}

# The two images: a static program that waits, and the rootfs that every substrate is measured with.
make_images() {
    mkdir -p "$KEPT/images"
    cc -static -O2 -o "$KEPT/images/pause" "$HERE/pause.c"
    python3 "$HERE/pause_image.py" "$KEPT/images/pause" "$KEPT/images/pause.tar"
    say "exporting the image bench"
    "$DUTYFREE" image export bench -o "$KEPT/images/bench.tar" >/dev/null ||
        fail "there is no image bench: $DUTYFREE image build bench"
    tar -xOf "$KEPT/images/bench.tar" manifest.json | sed 's/.*"RepoTags": *\["\([^"]*\)".*/\1/' >"$KEPT/images/bench.name"
}

# cgroup v1 has a tree for each controller, version 2 one for all; the kubelet wants its root in every one.
group_paths() {
    if [ -e /sys/fs/cgroup/cgroup.controllers ]; then
        echo "/sys/fs/cgroup/$GROUP"
        return
    fi
    for tree in /sys/fs/cgroup/*/; do
        [ ! -e "$tree/cgroup.procs" ] || echo "$tree$GROUP"
    done
}

make_groups() {
    for group in $(group_paths); do
        mkdir -p "$group"
        # A cpuset is empty at first, and takes no process then.
        for file in cpuset.cpus cpuset.mems; do
            [ ! -e "$group/$file" ] || [ -n "$(cat "$group/$file")" ] || cat "$(dirname "$group")/$file" >"$group/$file"
        done
    done
}

remove_groups() {
    for group in $(group_paths); do
        [ ! -d "$group" ] || find "$group" -depth -type d -exec rmdir {} \;
    done
}

start() {
    [ "$(id -u)" = 0 ] || fail "needs root: sudo make cluster"
    [ -x "$BINARIES/kubelet" ] && [ -x "$BINARIES/kubectl" ] || fail "Kubernetes is not built: make cluster-build"
    if outer >/dev/null && [ -e "$KEPT/ready" ]; then
        say "it is up: KUBECONFIG=$RUN/kubeconfig"
        return
    fi
    stop >/dev/null
    install_packages
    mkdir -p "$KEPT" /run/dutyfree
    chmod 700 "$KEPT"
    ln -sfn "$KEPT" "$RUN"
    for path in $MOUNT_POINTS; do
        [ -d "$path" ] || { mkdir -p "$path" && echo "$path" >>"$KEPT/made"; }
    done
    umask 077
    mkdir "$KEPT/log"
    make_keys
    make_images
    make_groups
    KEPT="$KEPT" BINARIES="$BINARIES" CLAIMS="$CLAIMS" GROUP="$GROUP" HERE="$HERE" \
        setsid unshare --mount --propagation private --pid --fork --mount-proc --kill-child \
        "$HERE/cluster-inside.sh" >"$KEPT/log/inside" 2>&1 </dev/null &
    echo $! >"$KEPT/outer"
    for _ in $(seq 1200); do
        if [ -e "$KEPT/ready" ]; then
            say "Kubernetes v$VERSION is up, its files in $KEPT"
            say "KUBECONFIG=$RUN/kubeconfig (namespace dutyfree); as its administrator: $RUN/admin.kubeconfig"
            return
        fi
        kill -0 $! 2>/dev/null || break
        sleep 0.25
    done
    tail -n 20 "$KEPT/log/inside" >&2
    fail "it did not start; see $KEPT/log, then make cluster-stop"
}

stop() {
    [ "$(id -u)" = 0 ] || fail "needs root: sudo make cluster-stop"
    local pid
    if pid=$(outer); then
        # The namespace's first process, its only child: with it the kernel ends all others, and only then unshare ends.
        kill -9 $(cat "/proc/$pid/task/$pid/children") 2>/dev/null || kill -9 "$pid"
        timeout 60 tail --pid="$pid" -s 0.1 -f /dev/null || fail "its processes do not end"
    fi
    remove_groups
    if [ -e "$KEPT/made" ]; then
        while read -r path; do rmdir "$path"; done <"$KEPT/made"
    fi
    rm -rf "$KEPT" "$RUN"
    rmdir /run/dutyfree 2>/dev/null || true
    say "nothing of it is left"
}

case "${1:-}" in
    start | stop) "$1" ;;
    *) fail "usage: cluster.sh start|stop" ;;
esac
