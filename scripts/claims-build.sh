#!/bin/sh
# agent-sandbox's controller (SandboxClaim, SandboxTemplate, SandboxWarmPool) and its resource definitions, built from its
# Go module into a cache outside the repository. Owns that one directory; starts nothing: `make cluster` does, where it
# finds them. A second run does nothing; an interrupted one goes on from Go's build cache. Decision 042.
set -eu

MODULE=sigs.k8s.io/agent-sandbox
VERSION="${DUTYFREE_AGENT_SANDBOX_VERSION:-0.5.6}"
CACHE="${DUTYFREE_CACHE:-/var/cache/dutyfree}/agent-sandbox-v$VERSION"

if [ -x "$CACHE/bin/agent-sandbox-controller" ]; then
    echo "claims-build: agent-sandbox v$VERSION is built in $CACHE"
    exit 0
fi
command -v go >/dev/null || { echo "claims-build: no go on PATH (Go >= 1.26 builds agent-sandbox v$VERSION)" >&2; exit 1; }

build="$CACHE/build"
mkdir -p "$build" "$CACHE/bin"
# Not `go install`: that asks for the list of all versions, which not every module proxy gives.
printf 'module dutyfree.invalid/claims\ngo 1.26.0\nrequire %s v%s\n' "$MODULE" "$VERSION" >"$build/go.mod"
export GOMODCACHE="$build/modules" GOCACHE="$build/objects" CGO_ENABLED=0
export GOFLAGS="-p=${DUTYFREE_CLUSTER_BUILD_JOBS:-1} -mod=mod -trimpath -buildvcs=false -modcacherw"
started=$(date +%s)
echo "claims-build: building agent-sandbox v$VERSION into $CACHE: 5 to 15 minutes, 2 GB while it builds"
cd "$build"
nice -n "${DUTYFREE_CLUSTER_BUILD_NICE:-10}" go build -ldflags "-s -w" -o "$build/agent-sandbox-controller" \
    "$MODULE/cmd/agent-sandbox-controller"
rm -rf "$CACHE/crds"
cp -R "$GOMODCACHE/$MODULE@v$VERSION/k8s/crds" "$CACHE/crds"
# Last: its presence says that all is there.
mv "$build/agent-sandbox-controller" "$CACHE/bin/agent-sandbox-controller"
cd "$CACHE"
rm -rf "$build"
echo "claims-build: done in $(($(date +%s) - started)) s: $(du -sh "$CACHE" | cut -f1) in $CACHE"
