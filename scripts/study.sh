#!/bin/bash
# The whole study on this machine: brings up every substrate it can have, measures them in one interleaved run, and puts the
# figures, the summary and the records they are made of where readers look first.
#
#   scripts/study.sh [TRIALS]    as root on Debian; started again, it goes on where it stopped
#
# STUDY_OUT=DIR     where the runs are kept while they go on (out/study)
# STUDY_STEPS=…     lengths of trajectories (0,10,50,150)
# STUDY_ONLY="S …"  these substrates and no others
# STUDY_MEDIUM=disk lets engines write to this machine's disk. By default everything they write is in memory, as it is for
#                   the substrates that need no engine: a disk is no isolation, and must not look like a part of its price.
#
# Three runs: trajectories one at a time; bursts of cold starts; emulated machines, which stand in no figure with the others.
#
# Everything runs in the same files: the bench image, as a layer stack, a container image, a bundle, a disk. The host, which is the
# reference, runs its own.
set -euo pipefail
cd "$(dirname "$0")/.."

TRIALS=${1:-30}
OUT=${STUDY_OUT:-out/study}
KEPT=docs/study
DUTYFREE=.venv/bin/dutyfree

say() { echo "study: $*"; }

[ "$(id -u)" = 0 ] || {
    say "needs root: sudo make study" >&2
    exit 1
}

# What is started here is ended here, in the opposite order.
stops=()
if [ "${STUDY_MEDIUM:-memory}" = memory ]; then
    export DUTYFREE_HOME=/dev/shm/dutyfree-study # the store, and every engine's and cluster's data
    mkdir -p "$DUTYFREE_HOME"
    stops+=("rm -rf --one-file-system $DUTYFREE_HOME")
fi
stop() {
    for ((i = ${#stops[@]} - 1; i >= 0; i--)); do ${stops[i]} || true; done
}
trap stop EXIT

stops+=("scripts/substrates.sh stop")
scripts/substrates.sh start
"$DUTYFREE" image build bench
if compgen -G "${DUTYFREE_CACHE:-/var/cache/dutyfree}/kubernetes-v*/bin/kubectl" >/dev/null; then
    stops+=("scripts/cluster.sh stop")
    scripts/cluster.sh start
else
    say "no Kubernetes: make cluster-build"
fi
stops+=("scripts/opensandbox.sh stop")
if scripts/opensandbox.sh start; then
    set -a # its address and key, for the driver
    . /run/dutyfree/opensandbox/environment
    set +a
fi

# Each as people use it (`api`), and docker and kubernetes also with our agent inside. How many trials each gets is a part of TRIALS,
# at least one: emulated machines take minutes for a trajectory, an exec call per action seconds.
declare -A part=(["gvisor?dispatch=api"]=2 ["kubernetes?dispatch=api"]=2)
real=(host noop native "native?stock=0" "docker?dispatch=api" "docker?dispatch=agent" "podman?dispatch=api" "runc?dispatch=api"
    "gvisor?dispatch=api" "kubernetes?dispatch=api" "kubernetes?dispatch=agent" opensandbox)
emulated=("vm?dispatch=api" microvm)
[ -z "${STUDY_ONLY:-}" ] || { read -ra real <<<"$STUDY_ONLY" && emulated=(); }

# Leaves those that work here in `chosen`. Asked of the substrates themselves: `doctor` would only say that they look well.
choose() {
    chosen=()
    for name in "$@"; do
        if ! reason=$("$DUTYFREE" run -s "$name" --image bench -- true 2>&1) && ! reason=$("$DUTYFREE" run -s "$name" -- true 2>&1); then
            say "not measured: $name: ${reason##*$'\n'}"
            continue
        fi
        chosen+=(-s "$name")
        [ -z "${part[$name]:-}" ] || chosen+=(--trials-for "$name=$(((TRIALS + part[$name] - 1) / part[$name]))")
    done
}

measure() { "$DUTYFREE" measure --image bench,host --deadline 1800 --settle 5 "$@"; }

choose "${real[@]}"
measure "${chosen[@]}" --trials "$TRIALS" --steps "${STUDY_STEPS:-0,10,50,150}" -o "$OUT"
# Cohorts are single samples, so bursts have as many of them as the others have trials, of the quick ones at least.
burst=(host noop native "native?stock=0" "docker?dispatch=api" "runc?dispatch=api")
[ -z "${STUDY_ONLY:-}" ] || burst=("${real[@]}")
choose "${burst[@]}"
measure "${chosen[@]}" --tier T0 --steps 0 --parallel 8,32 --trials "$((TRIALS * 8))" -o "$OUT-burst"
runs=("$OUT" "$OUT-burst")
if [ "${#emulated[@]}" -gt 0 ]; then
    choose "${emulated[@]}"
    [ "${#chosen[@]}" = 0 ] || {
        measure "${chosen[@]}" --trials 2 --tier T0,T2 --steps 0,50 -o "$OUT-emulated"
        runs+=("$OUT-emulated")
    }
fi
"$DUTYFREE" report "${runs[@]}" -o "$OUT-report"

mkdir -p "$KEPT/figures"
rm -rf "$KEPT"/figures/*
cp "$OUT-report"/figures/*.svg "$KEPT/figures"
cp "$OUT-report/summary.json" "$KEPT"
cp "$OUT/manifest.json" "$KEPT"
[ ! -e "$OUT/probes.json" ] || cp "$OUT/probes.json" "$KEPT" # of `dutyfree probe -o`
for run in "${runs[@]}"; do cat "$run/records.jsonl"; done | gzip -9n >"$KEPT/records.jsonl.gz"
.venv/bin/python "$KEPT/recompute.py"
say "figures, summary and records are in $KEPT; the whole report is $OUT-report/report.html"
