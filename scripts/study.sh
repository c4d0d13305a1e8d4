#!/bin/bash
# The whole study on this machine: brings up every substrate it can have, measures them in one interleaved run, and puts the
# report, with the records it is made of, where readers look first.
#
#   scripts/study.sh [TRIALS]    as root on Debian; started again, it goes on where it stopped
#
# STUDY_OUT=DIR     where the run is kept while it goes on (out/study)
# STUDY_STEPS=…     lengths of trajectories (0,10,50,150)
# STUDY_ONLY="S …"  these substrates and no others
#
# Everything runs in the same files: the bench image, as a layer stack, a container image, a bundle, a disk. The host, which is the
# reference, runs its own.
set -euo pipefail
cd "$(dirname "$0")/.."

TRIALS=${1:-20}
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
declare -A part=(["podman?dispatch=api"]=2 ["runc?dispatch=api"]=2 ["opensandbox"]=2 ["gvisor?dispatch=api"]=4
    ["kubernetes?dispatch=api"]=4 ["vm?dispatch=api"]=10 ["microvm"]=10)
wanted=(host noop native "docker?dispatch=api" "docker?dispatch=agent" "podman?dispatch=api" "runc?dispatch=api" "gvisor?dispatch=api"
    "kubernetes?dispatch=api" "kubernetes?dispatch=agent" opensandbox "vm?dispatch=api" microvm)
[ -z "${STUDY_ONLY:-}" ] || read -ra wanted <<<"$STUDY_ONLY"

chosen=()
for name in "${wanted[@]}"; do
    # Asked of the substrate itself: `doctor` would only say that it looks well.
    if ! reason=$("$DUTYFREE" run -s "$name" --image bench -- true 2>&1) && ! reason=$("$DUTYFREE" run -s "$name" -- true 2>&1); then
        say "not measured: $name: ${reason##*$'\n'}"
        continue
    fi
    chosen+=(-s "$name")
    if [ -n "${part[$name]:-}" ]; then
        fewer=$((TRIALS / part[$name]))
        chosen+=(--trials-for "$name=$((fewer > 0 ? fewer : 1))")
    fi
done

"$DUTYFREE" measure "${chosen[@]}" --image bench,host --trials "$TRIALS" --steps "${STUDY_STEPS:-0,10,50,150}" \
    --deadline 1800 -o "$OUT"
"$DUTYFREE" report "$OUT"

mkdir -p "$KEPT"
rm -rf "$KEPT/figures"
cp -r "$OUT"/{manifest.json,summary.json,tables.md,report.html,figures} "$KEPT"
[ ! -e "$OUT/probes.json" ] || cp "$OUT/probes.json" "$KEPT" # of `dutyfree probe -o`
gzip -9nc "$OUT/records.jsonl" >"$KEPT/records.jsonl.gz"
say "the report, its figures and its records are in $KEPT"
