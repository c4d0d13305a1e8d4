#!/bin/bash
# Installs and starts what this machine can have of the container and machine substrates, or stops what it started.
#
#   scripts/substrates.sh start     as root on Debian; does only what is missing, and says what it did
#   scripts/substrates.sh machines  only QEMU and what its guests need (kernel, sshd), unpacked below DUTYFREE_HOME
#   scripts/substrates.sh stop      ends the daemon that `start` started; packages and images stay
#
# The Docker daemon is one of our own, beside any other: no bridge, no packet filter, its state in our directories.
# podman, runc and runsc need no daemon.
set -euo pipefail

RUN=/run/dutyfree/docker
KEPT=${DUTYFREE_HOME:-/var/lib/dutyfree}/docker
MACHINES=${DUTYFREE_HOME:-/var/lib/dutyfree}/machines
GROUP=dutyfree-docker
BACKPORTS_SUITE=bookworm-backports

say() { echo "substrates: $*"; }

fail() {
    say "$*" >&2
    exit 1
}

installed() { command -v "$1" >/dev/null || [ -x "/usr/sbin/$1" ] || [ -x "/usr/bin/$1" ]; }

updated=
install_package() { # program, package
    if installed "$1"; then
        say "$1 is there"
        return
    fi
    if [ -z "$updated" ]; then
        apt-get update -qq >/dev/null || say "cannot refresh the package lists; trying with those that are there"
        updated=1
    fi
    say "installing $2"
    # Debian starts services on installation where there is an init system; ours is started by hand.
    RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $2 >/dev/null ||
        say "cannot install $2: its substrate stays unavailable"
}

# Debian 12's own runsc knows the ptrace platform only. The newer one comes from backports, by package lists of our own:
# the machine's sources are read for the mirror and not changed. In a shell of its own, whose end removes them.
install_runsc() (
    if installed runsc; then
        say "runsc is there"
        return
    fi
    mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Codename: bookworm' 'Created-By: Packages' 2>/dev/null | head -n 1)
    if [ -n "$mirror" ]; then
        scratch=$(mktemp -d)
        trap 'rm -rf "$scratch"' EXIT
        mkdir -p "$scratch/lists/partial"
        chmod -R a+rX "$scratch"
        echo "deb [signed-by=/usr/share/keyrings/debian-archive-keyring.gpg] $mirror $BACKPORTS_SUITE main" >"$scratch/list"
        options=(-o "Dir::Etc::sourcelist=$scratch/list" -o Dir::Etc::sourceparts=- -o "Dir::State::lists=$scratch/lists")
        if apt-get "${options[@]}" update -qq >/dev/null 2>&1 &&
            DEBIAN_FRONTEND=noninteractive apt-get "${options[@]}" install -y -qq --no-install-recommends runsc >/dev/null; then
            say "installed runsc from $BACKPORTS_SUITE"
            return
        fi
    fi
    install_package runsc runsc
)

# Packages for guests are downloaded and unpacked, never installed: this machine keeps its own kernel and runs no sshd.
unpack_packages() { # target, package...
    local target=$1 scratch
    shift
    if [ -d "$target" ]; then
        say "$target is there"
        return
    fi
    scratch=$(mktemp -d)
    chmod 755 "$scratch"
    if (cd "$scratch" && apt-get download -qq "$@" >/dev/null 2>&1) && mkdir -p "${target%/*}" "$scratch/root"; then
        local package
        for package in "$scratch"/*.deb; do dpkg-deb -x "$package" "$scratch/root"; done
        chmod 755 "$scratch/root"
        mv "$scratch/root" "$target"
        say "unpacked $* in $target"
    else
        say "cannot download $*: no virtual machines"
    fi
    rm -rf "$scratch"
}

fetch_machines() {
    install_package qemu-system-x86_64 qemu-system-x86
    install_package mkfs.ext4 e2fsprogs
    install_package ssh openssh-client
    local kernel
    kernel=$(apt-cache depends linux-image-cloud-amd64 2>/dev/null | awk '/Depends: linux-image/ { print $2; exit }')
    if [ -z "$kernel" ]; then
        say "the package lists name no cloud kernel (apt-get update?): no virtual machines"
        return
    fi
    unpack_packages "$MACHINES/kernel/$kernel" "$kernel"
    unpack_packages "$MACHINES/ssh" openssh-server libwrap0
}

machines() {
    [ "$(id -u)" = 0 ] || fail "needs root: sudo scripts/substrates.sh machines"
    installed apt-get || fail "needs Debian's apt-get"
    fetch_machines
}

answers() { curl -s -o /dev/null --max-time 5 --unix-socket "$1" http://engine/_ping; }

start_docker() {
    if answers /var/run/docker.sock; then
        say "a Docker engine is up at /var/run/docker.sock"
        return
    fi
    if answers "$RUN/docker.sock"; then
        say "our Docker engine is up at $RUN/docker.sock"
        return
    fi
    installed dockerd || return 0
    mkdir -p "$RUN" "$KEPT"
    setsid dockerd --host="unix://$RUN/docker.sock" --data-root="$KEPT" --exec-root="$RUN/exec" --pidfile="$RUN/pid" \
        --bridge=none --iptables=false --ip-forward=false --ip-masq=false --cgroup-parent="/$GROUP" \
        >"$RUN/log" 2>&1 </dev/null &
    for _ in $(seq 300); do
        if answers "$RUN/docker.sock"; then
            say "started dockerd at $RUN/docker.sock, its state in $KEPT"
            return
        fi
        sleep 0.1
    done
    tail -n 5 "$RUN/log" >&2
    say "dockerd did not start; see $RUN/log"
}

start() {
    [ "$(id -u)" = 0 ] || fail "needs root: sudo make substrates"
    installed apt-get || fail "needs Debian's apt-get"
    install_package curl curl
    install_package dockerd docker.io
    install_package runc runc
    install_package podman "podman uidmap"
    install_runsc
    fetch_machines
    start_docker
    say "now: dutyfree doctor"
}

stop() {
    [ "$(id -u)" = 0 ] || fail "needs root: sudo make substrates-stop"
    if [ ! -e "$RUN/pid" ]; then
        say "no daemon of ours is running"
    else
        local pid
        pid=$(cat "$RUN/pid")
        kill "$pid" 2>/dev/null || true
        # SIGTERM lets it end its containers and containerd; it is waited for, not assumed.
        timeout 60 tail --pid="$pid" -f /dev/null || say "dockerd ($pid) does not end"
        say "stopped dockerd"
    fi
    # What the daemon mounts on itself and the cgroups above its containers outlive it.
    awk -v a="$KEPT" -v b="$RUN" 'index($2, a) == 1 || index($2, b) == 1 { print $2 }' /proc/mounts | sort -r |
        while read -r mount; do umount "$mount" && say "unmounted $mount"; done
    for group in /sys/fs/cgroup/"$GROUP" /sys/fs/cgroup/*/"$GROUP"; do
        if [ -d "$group" ]; then rmdir "$group"; fi
    done
    rm -rf "$RUN"
}

case "${1:-}" in
    start | machines | stop) "$1" ;;
    *) fail "usage: substrates.sh start|machines|stop" ;;
esac
