#!/usr/bin/env bash
# Prints the Secrets of a fleet, for `kubectl apply -f -`: the certificates, one per role, and the
# certificate and password of its Redis.
#   deploy/k8s/make-secrets.sh DIR [--namespace NAME] [--domain DOMAIN] [--days N]
# DIR keeps the authority (DIR/ca) and the password of Redis (DIR/redis-password), which the first
# call makes, and your own certificate as operator (DIR/operator), for SLUICE_TLS. Keep DIR off the
# cluster. A later call with the same DIR issues new certificates; the daemons take them up within
# minutes, without a restart.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
namespace=sluice domain=sluice days=90 dir=

fail() {
  printf 'error: %s\nhint: %s\n' "$1" "$2" >&2
  exit "${3:-1}"
}

while [ $# -gt 0 ]; do
  case $1 in
    --namespace) namespace=${2:?--namespace needs a name}; shift 2 ;;
    --domain) domain=${2:?--domain needs a name}; shift 2 ;;
    --days) days=${2:?--days needs a number}; shift 2 ;;
    -h | --help) sed -n '2,8s/^# \?//p' "$0"; exit 0 ;;
    -*) fail "unknown argument $1" "$0 --help" 2 ;;
    *) [ -z "$dir" ] || fail "two folders are given, $dir and $1" "$0 --help" 2; dir=$1; shift ;;
  esac
done
[ -n "$dir" ] || fail "no folder for the authority is given" "$0 ~/sluice-ca | kubectl apply -f -" 2

# The CLI: $SLUICE_CLI, else that of the PATH, else that of the tree's release build.
sluice=${SLUICE_CLI:-$(command -v sluice || echo "$here/../../build/release/bin/sluice")}
command -v "$sluice" >/dev/null ||
  fail "there is no program sluice" "build it with tools/demo.sh, or set SLUICE_CLI=FILE"

[ -f "$dir/ca/ca.key" ] || "$sluice" pki init "$dir/ca" --domain "$domain" >&2
"$sluice" pki issue operator admin --ca "$dir/ca" --out "$dir/operator" --days "$days" >&2

keys=$(mktemp -d)
trap 'rm -rf "$keys"' EXIT

# print_secret ROLE NAME: '*' is a name for every daemon of the role; --id then names the pod.
print_secret() {
  local role=$1 name=$2
  "$sluice" pki issue "$role" "$name" --ca "$dir/ca" --out "$keys/$role" --days "$days" >&2
  cat <<YAML
---
apiVersion: v1
kind: Secret
metadata:
  name: sluice-tls-$role
  namespace: $namespace
  labels:
    app.kubernetes.io/name: sluice
type: kubernetes.io/tls
data:
  ca.crt: $(base64 -w0 "$keys/$role/ca.crt")
  tls.crt: $(base64 -w0 "$keys/$role/tls.crt")
  tls.key: $(base64 -w0 "$keys/$role/tls.key")
YAML
}

# The Secrets need their namespace. The overlays have the same one.
sed "s/^  name: sluice$/  name: $namespace/" "$here/base/namespace.yaml"
for role in controller queue rollout reward trainer; do print_secret "$role" '*'; done
print_secret submitter cluster

# The Redis of `prod`. Its certificate is for the host name of its Service, which its clients check;
# as a caller of daemons it would be a viewer.
[ -f "$dir/redis-password" ] ||
  (umask 077 && head -c 32 /dev/urandom | base64 -w0 | tr -d '+/=' >"$dir/redis-password")
"$sluice" pki issue viewer redis --ca "$dir/ca" --out "$keys/redis" --days "$days" \
  --host redis --host "redis.$namespace.svc" --host localhost >&2
cat <<YAML
---
apiVersion: v1
kind: Secret
metadata:
  name: sluice-redis
  namespace: $namespace
  labels:
    app.kubernetes.io/name: sluice
type: Opaque
data:
  ca.crt: $(base64 -w0 "$keys/redis/ca.crt")
  tls.crt: $(base64 -w0 "$keys/redis/tls.crt")
  tls.key: $(base64 -w0 "$keys/redis/tls.key")
  password: $(base64 -w0 "$dir/redis-password")
  redis.conf: $(printf 'requirepass %s\n' "$(cat "$dir/redis-password")" | base64 -w0)
YAML
