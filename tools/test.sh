#!/usr/bin/env bash
# Installs what is missing, builds everything with failpoints, and runs all tests.
#   tools/test.sh [--torch DIR] [--preset test|asan|tsan] [-- CTEST ARGUMENTS]
source "$(dirname "$0")/setup.sh"

preset=test
while [ $# -gt 0 ]; do
  case $1 in
    --torch) torch_dir=${2:?--torch needs a directory}; shift 2 ;;
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --) shift; break ;;
    -h | --help) sed -n '2,3s/^# \?//p' "$0"; exit 0 ;;
    *) fail "unknown argument $1" "tools/test.sh --help" ;;
  esac
done

setup "$preset"
install_openai
install_kubernetes_tools
install_browser
install_grafana_schema
install_nvcc
say "running the tests"
results=$root/build/$preset/results.xml
status=0
ctest --test-dir "$root/build/$preset" --output-on-failure --no-tests=error -j 2 \
  --output-junit "$results" "$@" || status=$?
python3 - "$results" <<'PY'
import sys, xml.etree.ElementTree as tree
suite = tree.parse(sys.argv[1]).getroot()
total, failed = int(suite.get("tests", 0)), int(suite.get("failures", 0))
skipped = int(suite.get("skipped", 0)) + int(suite.get("disabled", 0))
print(f"{total - failed - skipped} passed, {failed} failed, {skipped} skipped")
PY
exit $status
