#!/bin/sh
# The cluster's binaries (kube-apiserver, kube-controller-manager, kube-scheduler, kubelet, kubectl), built from the
# Go module of Kubernetes into a cache outside the repository. Owns that one directory; starts nothing. A second run
# finds the binaries there and does nothing; an interrupted one goes on from Go's build cache. Decision 046.
set -eu

VERSION="${DUTYFREE_KUBERNETES_VERSION:-1.34.4}"
CACHE="${DUTYFREE_CACHE:-/var/cache/dutyfree}/kubernetes-v$VERSION"
COMMANDS="kube-apiserver kube-controller-manager kube-scheduler kubelet kubectl"
# Kubernetes' own go.mod points these at directories of its repository, which a module does not carry.
STAGING="api apiextensions-apiserver apimachinery apiserver cli-runtime client-go cloud-provider cluster-bootstrap
code-generator component-base component-helpers controller-manager cri-api cri-client csi-translation-lib
dynamic-resource-allocation endpointslice externaljwt kms kube-aggregator kube-controller-manager kube-proxy
kube-scheduler kubectl kubelet metrics mount-utils pod-security-admission sample-apiserver sample-cli-plugin
sample-controller"

missing=""
for command in $COMMANDS; do
    [ -x "$CACHE/bin/$command" ] || missing="$missing $command"
done
if [ -z "$missing" ]; then
    echo "cluster-build: Kubernetes v$VERSION is built in $CACHE/bin"
    exit 0
fi
command -v go >/dev/null || { echo "cluster-build: no go on PATH (Go >= 1.24 builds Kubernetes v$VERSION)" >&2; exit 1; }

build="$CACHE/build"
mkdir -p "$build" "$CACHE/bin"
{
    echo "module dutyfree.invalid/cluster"
    echo "go 1.24.0"
    echo "require k8s.io/kubernetes v$VERSION"
    for module in $STAGING; do
        echo "replace k8s.io/$module => k8s.io/$module v0.${VERSION#1.}"
    done
} >"$build/go.mod"
export GOMODCACHE="$build/modules" GOCACHE="$build/objects" CGO_ENABLED=0
export GOFLAGS="-p=${DUTYFREE_CLUSTER_BUILD_JOBS:-1} -mod=mod -trimpath -buildvcs=false -modcacherw"
started=$(date +%s)
echo "cluster-build: building Kubernetes v$VERSION ($missing ) into $CACHE/bin: 15 to 40 minutes, 4 GB while it builds"
cd "$build"
for command in $missing; do
    at=$(date +%s)
    nice -n "${DUTYFREE_CLUSTER_BUILD_NICE:-10}" go build -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=v$VERSION \
-X k8s.io/component-base/version.gitMajor=1 -X k8s.io/component-base/version.gitMinor=34" \
        -o "$CACHE/bin/$command.part" "k8s.io/kubernetes/cmd/$command"
    mv "$CACHE/bin/$command.part" "$CACHE/bin/$command"
    echo "cluster-build: $command in $(($(date +%s) - at)) s"
done
cd "$CACHE"
rm -rf "$build"
echo "cluster-build: done in $(($(date +%s) - started)) s: $(du -sh "$CACHE/bin" | cut -f1) in $CACHE/bin"
