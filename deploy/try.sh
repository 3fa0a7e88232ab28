#!/usr/bin/env bash
# Builds the images and runs the pods of the overlay `dev` on this machine, without a cluster, until
# the example job has SUCCEEDED. Must run as root.
#   deploy/try.sh [--bin DIR] [--keep]
# --bin DIR takes the programs of a build, such as build/test/bin, instead of building them from
# source in an image, which takes a quarter of an hour on two cores. --keep leaves the pods running.
#
# buildah builds (chroot isolation), `podman play kube` runs the pod templates (runc, cgroupfs).
# Everything is kept in build/try/. Where no registry can be reached, debootstrap makes the base
# image. Services, probes and policies need a cluster: see tests/deploy/cluster_test.cc.
source "$(dirname "${BASH_SOURCE[0]}")/../tools/setup.sh"

bin= keep=
while [ $# -gt 0 ]; do
  case $1 in
    --bin) bin=$(cd "${2:?--bin needs a directory}" && pwd); shift 2 ;;
    --keep) keep=1; shift ;;
    -h | --help) sed -n '2,6s/^# \?//p' "$0"; exit 0 ;;
    *) fail "unknown argument $1" "deploy/try.sh --help" ;;
  esac
done
[ "$(id -u)" = 0 ] || fail "this script mounts and runs containers, which needs root" "sudo $0"
command -v kubectl >/dev/null || install_packages kubernetes-client
install_packages buildah podman runc netavark catatonit debootstrap iptables

dir=$root/build/try
tools=${bin:-$root/build/test/bin}
subnet=10.89.7
for program in sluice podman_pods; do
  [ -x "$tools/$program" ] ||
    fail "there is no program $tools/$program" "ninja -C build/test $program"
done
base=$(sed -n 's/^ARG BASE=//p' "$root/deploy/images/Dockerfile")

# Storage and settings of this script alone.
use_own_storage() {
  mkdir -p "$dir"
  # A container must not ask for more files than this process may have.
  cat >"$dir/containers.conf" <<CONF
[containers]
default_ulimits = ["nofile=$(ulimit -Hn):$(ulimit -Hn)", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
[network]
network_backend = "netavark"
CONF
  cat >"$dir/storage.conf" <<CONF
[storage]
driver = "vfs"
graphroot = "$dir/storage"
runroot = "$dir/run"
CONF
  export CONTAINERS_CONF=$dir/containers.conf CONTAINERS_STORAGE_CONF=$dir/storage.conf
  export BUILDAH_ISOLATION=chroot
}

make_base_image() {
  buildah inspect --type image "$base" && return
  timeout 60 buildah pull "$base" && return
  [ -d "$dir/rootfs" ] || debootstrap --variant=minbase bookworm "$dir/rootfs"
  local container
  container=$(buildah from scratch)
  buildah add -q "$container" "$dir/rootfs" /
  buildah commit -q "$container" "$base"
  buildah rm "$container"
}

# Lays the programs of --bin out as the stage `build` of the Dockerfile does.
collect_programs() {
  rm -rf "$dir/out" && mkdir -p "$dir/out/out/bin" "$dir/out/out/lib"
  local program
  for program in sluice sluice-controller sluice-queue sluice-rollout sluice-reward sluice-trainer
  do strip -o "$dir/out/out/bin/$program" "$bin/$program"; done
  ldd "$bin/sluice-trainer" | awk '/libtorch|libc10|libgomp/ {print $3}' |
    xargs cp -L -t "$dir/out/out/lib"
}

build_image() {
  local prebuilt=()
  [ -z "$bin" ] || prebuilt=(--build-context "build=$dir/out/")
  # shellcheck disable=SC2086  # A list of arguments, such as proxies.
  buildah build --pull-never --layers -f "$root/deploy/images/Dockerfile" --target "$1" \
    "${prebuilt[@]}" ${SLUICE_BUILDAH_ARGS:-} -t "localhost/sluice-$1:dev" "$root"
}

remove_pods() {
  podman pod rm -fa -t 0
  podman network rm -f sluice-try
  rm -rf "$dir/pods"
}

play() { podman play kube --network sluice-try --ip "$2" "$3"; }

use_own_storage
say "the base image $base"
stage try-base make_base_image
[ -z "$bin" ] || stage try-programs collect_programs
for target in controller queue rollout reward trainer cli; do
  say "the image sluice-$target:dev"
  stage "try-image-$target" build_image "$target"
done

say "rendering overlays/dev"
stage try-remove remove_pods
[ -n "$keep" ] || trap 'stage try-remove remove_pods' EXIT
mkdir -p "$dir/pods"
SLUICE_CLI=$tools/sluice "$root/deploy/k8s/make-secrets.sh" "$dir/authority" \
  >"$dir/pods/secrets" 2>"$dir/pods/secrets.log"
"$tools/podman_pods" "$root/deploy" dev "$dir/pods/secrets" "$dir/pods" $subnet \
  >"$dir/pods/list"
stage try-network podman network create --subnet $subnet.0/24 sluice-try

started=$(date +%s)
say "starting the daemons"
while read -r pod address file ops; do
  [ "$ops" = 0 ] || stage "try-$pod" play "$pod" "$address" "$file"
done <"$dir/pods/list"
while read -r pod address file ops; do
  [ "$ops" = 0 ] && continue
  until curl -sf -o /dev/null "http://$address:$ops/readyz"; do
    [ $(($(date +%s) - started)) -lt 60 ] ||
      fail "$pod is not ready after 60 s: $(curl -s "http://$address:$ops/readyz")" \
        "CONTAINERS_CONF=$CONTAINERS_CONF CONTAINERS_STORAGE_CONF=$CONTAINERS_STORAGE_CONF \
podman logs ${pod}-${pod%-0}"
    sleep 0.2
  done
done <"$dir/pods/list"
say "all daemons are ready after $(($(date +%s) - started)) s"

while read -r pod address file ops; do
  [ "$ops" != 0 ] || stage "try-$pod" play "$pod" "$address" "$file"
done <"$dir/pods/list"

export SLUICE_TLS=$dir/authority/operator
export SLUICE_SERVER; SLUICE_SERVER=$(awk '$1 == "controller-0" {print $2}' "$dir/pods/list"):7400
until "$tools/sluice" job describe digits >/dev/null 2>&1; do
  [ $(($(date +%s) - started)) -lt 120 ] || fail "no job digits" "podman logs submit-digits-0-cli"
  sleep 0.5
done
"$tools/sluice" job wait digits --for SUCCEEDED --timeout 10m
"$tools/sluice" job describe digits
"$tools/sluice" queue fsck digits
say "SUCCEEDED $(($(date +%s) - started)) s after the first pod was started"
