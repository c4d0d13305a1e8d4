#!/bin/bash
# The cluster itself, as the first process of a process and mount namespace that cluster.sh made. Never run by hand.
#
# What the programs would leave on the machine is covered first: /run and the kubelet's built-in paths are ours, and the
# sysctls it sets are files of ours. When this script ends, the kernel ends everything it started.
set -euo pipefail

umask 022 # what containerd makes with it is the root directory of every container
export HOME="$KEPT" # kubectl keeps what it learnt there
cd "$KEPT"
CTR=(ctr --address /run/containerd/containerd.sock --namespace k8s.io)
KUBECTL=("$BINARIES/kubectl" --kubeconfig "$KEPT/admin.kubeconfig")

say() { echo "cluster: $*"; }

cover_paths() {
    mount -t tmpfs -o mode=755 tmpfs /run
    mkdir -p /run/containerd etcd sysctl covered
    local name
    for name in $MOUNT_POINTS; do
        mkdir "covered/${name//\//.}"
        mount --bind "covered/${name//\//.}" "$name"
    done
    mount -t tmpfs -o mode=700 tmpfs "$KEPT/etcd" # nothing here outlives the cluster: no disk has to be waited for
    for name in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops \
        kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
        cat "/proc/sys/$name" >"sysctl/${name//\//.}"
        mount --bind "sysctl/${name//\//.}" "/proc/sys/$name"
    done
}

begin() { # name, program and arguments
    local name=$1
    shift
    "$@" >"log/$name" 2>&1 </dev/null &
    say "$name"
}

await() { # what, command
    local what=$1
    shift
    for _ in $(seq 600); do
        ! "$@" >/dev/null 2>&1 || return 0
        sleep 0.2
    done
    say "$what does not become ready" >&2
    exit 1
}

begin_store() {
    local client=https://127.0.0.1:12379 peer=https://127.0.0.1:12380
    begin etcd etcd --data-dir "$KEPT/etcd" --name dutyfree \
        --listen-client-urls $client --advertise-client-urls $client --client-cert-auth \
        --cert-file keys/own.crt --key-file keys/own.key --trusted-ca-file keys/ca.crt \
        --listen-peer-urls $peer --initial-advertise-peer-urls $peer --initial-cluster dutyfree=$peer \
        --peer-client-cert-auth --peer-cert-file keys/own.crt --peer-key-file keys/own.key --peer-trusted-ca-file keys/ca.crt
    begin kube-apiserver "$BINARIES/kube-apiserver" --bind-address 127.0.0.1 --secure-port 16443 \
        --etcd-servers $client --etcd-cafile keys/ca.crt --etcd-certfile keys/own.crt --etcd-keyfile keys/own.key \
        --tls-cert-file keys/own.crt --tls-private-key-file keys/own.key \
        --token-auth-file keys/tokens --anonymous-auth=false --authorization-mode RBAC \
        --service-cluster-ip-range 10.255.0.0/24 --endpoint-reconciler-type none \
        --service-account-issuer https://127.0.0.1:16443 \
        --service-account-signing-key-file keys/accounts.key --service-account-key-file keys/accounts.key \
        --kubelet-client-certificate keys/own.crt --kubelet-client-key keys/own.key --kubelet-port 11250 \
        --kubelet-preferred-address-types Hostname
    await "the API server" "${KUBECTL[@]}" get --raw /readyz
}

has_claims() { [ -x "$CLAIMS/bin/agent-sandbox-controller" ]; }

# Before the controllers: the collector learns of later definitions only after half a minute. No conversion, as the
# webhook that would do it is a service inside a cluster; one version of each is stored and spoken.
define_claims() {
    local definition
    for definition in $("${KUBECTL[@]}" create -f "$CLAIMS/crds" -o name); do
        "${KUBECTL[@]}" patch "$definition" --type json \
            -p '[{"op": "replace", "path": "/spec/conversion", "value": {"strategy": "None"}}]' >/dev/null
        "${KUBECTL[@]}" wait --for condition=Established "$definition" --timeout 60s >/dev/null
    done
}

begin_claims() {
    begin agent-sandbox env KUBECONFIG="$KEPT/admin.kubeconfig" "$CLAIMS/bin/agent-sandbox-controller" --extensions \
        --leader-elect=false --enable-webhook=false --metrics-bind-address=0 --health-probe-bind-address=0
    "${KUBECTL[@]}" apply -f "$HERE/../docs/guide/claims.yaml" >/dev/null
    sed "s|image: bench|image: $(cat images/bench.name)|" "$HERE/../docs/guide/template.yaml" | "${KUBECTL[@]}" apply -f - >/dev/null
}

begin_containerd() {
    mkdir -p cni/bin cni/conf
    ln -sf /usr/lib/cni/loopback cni/bin/loopback
    # A pod has its loopback and nothing else; the address is one that leads nowhere, as the kubelet wants to see one.
    cat >cni/bin/dutyfree-none <<-'PLUGIN'
	#!/bin/sh
	case $CNI_COMMAND in
	VERSION) echo '{"cniVersion": "0.4.0", "supportedVersions": ["0.4.0"]}' ;;
	ADD) printf '{"cniVersion": "0.4.0", "interfaces": [{"name": "%s", "sandbox": "%s"}],
	    "ips": [{"version": "4", "address": "192.0.2.1/32", "interface": 0}]}' "$CNI_IFNAME" "$CNI_NETNS" ;;
	esac
	PLUGIN
    chmod 755 cni/bin/dutyfree-none
    echo '{"cniVersion": "0.4.0", "name": "none", "plugins": [{"type": "dutyfree-none"}]}' >cni/conf/none.conflist
    # restrict_oom_score_adj: without the right to lower a score, every pod would fail to start.
    cat >containerd.toml <<-CONFIG
	version = 2
	root = "$KEPT/containerd"
	state = "/run/containerd"
	[grpc]
	  address = "/run/containerd/containerd.sock"
	[plugins."io.containerd.grpc.v1.cri"]
	  sandbox_image = "docker.io/dutyfree/pause:1"
	  restrict_oom_score_adj = true
	  stream_server_address = "127.0.0.1"
	  [plugins."io.containerd.grpc.v1.cri".cni]
	    bin_dir = "$KEPT/cni/bin"
	    conf_dir = "$KEPT/cni/conf"
	  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
	    runtime_type = "io.containerd.runc.v2"
	CONFIG
    begin containerd containerd --config "$KEPT/containerd.toml"
    await containerd "${CTR[@]}" version
    for image in pause bench; do
        "${CTR[@]}" images import "images/$image.tar" >/dev/null
        rm "images/$image.tar"
        say "image $image"
    done
}

begin_kubelet() {
    cat >kubelet.yaml <<-CONFIG
	apiVersion: kubelet.config.k8s.io/v1beta1
	kind: KubeletConfiguration
	address: 127.0.0.1
	port: 11250
	healthzPort: 0
	authentication: {anonymous: {enabled: false}, webhook: {enabled: false}, x509: {clientCAFile: $KEPT/keys/ca.crt}}
	authorization: {mode: AlwaysAllow}
	containerRuntimeEndpoint: unix:///run/containerd/containerd.sock
	cgroupDriver: cgroupfs
	cgroupRoot: /$GROUP
	failSwapOn: false
	makeIPTablesUtilChains: false
	localStorageCapacityIsolation: false
	oomScoreAdj: 0
	maxPods: 500
	volumePluginDir: $KEPT/plugins
	evictionHard: {memory.available: 100Mi, nodefs.available: "1%", imagefs.available: "1%", nodefs.inodesFree: "1%"}
	CONFIG
    begin kubelet "$BINARIES/kubelet" --config kubelet.yaml --kubeconfig admin.kubeconfig \
        --root-dir "$KEPT/kubelet" --cert-dir "$KEPT/kubelet/pki" --hostname-override localhost
}

cover_paths
begin_store
! has_claims || define_claims
begin kube-controller-manager "$BINARIES/kube-controller-manager" --kubeconfig admin.kubeconfig --leader-elect=false \
    --secure-port 0 --flex-volume-plugin-dir "$KEPT/plugins" --service-account-private-key-file keys/accounts.key --root-ca-file keys/ca.crt
begin kube-scheduler "$BINARIES/kube-scheduler" --kubeconfig admin.kubeconfig --leader-elect=false --secure-port 0
begin_containerd
begin_kubelet
"${KUBECTL[@]}" apply -f "$HERE/../docs/guide/kubernetes.yaml" >/dev/null
"${KUBECTL[@]}" label namespace dutyfree dutyfree.network=none >/dev/null
! has_claims || begin_claims
await "the node" "${KUBECTL[@]}" wait --for condition=Ready node/localhost --timeout 1s
await "the account of pods" "${KUBECTL[@]}" --namespace dutyfree get serviceaccount default
touch ready
say "ready"
wait -n
say "a part of it ended; see the logs" >&2
