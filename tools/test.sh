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
again=$root/build/$preset/results-again.xml
rm -f "$results" "$again"
tests=(ctest --test-dir "$root/build/$preset" --output-on-failure --no-tests=error)
status=0
# Many tests wait most of the time, so that it takes three of them to keep two cores busy.
"${tests[@]}" -j 3 --output-junit "$results" "$@" || status=$?
# They can keep each other from the processor for longer than a deadline of one of them. A few
# failures are therefore looked at again, one test after the other, and are named below.
failures=$(sed -n 's/.*[[:space:]]failures="\([0-9]*\)".*/\1/p' "$results" | head -n 1)
if [ $status -ne 0 ] && [[ $failures == [1-3] ]]; then
  say "running the tests that failed again, each alone"
  status=0
  "${tests[@]}" --rerun-failed -j 1 --output-junit "$again" || status=$?
fi
python3 - "$results" "$again" <<'PY'
import os, sys, xml.etree.ElementTree as tree

def read(path):
    suite = tree.parse(path).getroot()
    failed = [test.get("name") for test in suite.iter("testcase") if test.get("status") == "fail"]
    return suite, failed

suite, failed = read(sys.argv[1])
first = failed
if os.path.exists(sys.argv[2]):
    failed = read(sys.argv[2])[1]
skipped = int(suite.get("skipped", 0)) + int(suite.get("disabled", 0))
passed = int(suite.get("tests", 0)) - len(failed) - skipped
print(f"{passed} passed, {len(failed)} failed, {skipped} skipped")
for name in sorted(set(first) - set(failed)):
    print(f"{name} failed beside another test, and passed alone: its first output is above")
PY
exit $status
