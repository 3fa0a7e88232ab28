#!/usr/bin/env bash
# Checks the form of the tracked sources, and changes nothing unless --fix is given:
#   - clang-format (.clang-format), of a fixed version, installed into .deps/
#   - no line above 100 columns
#   - clang-tidy (.clang-tidy) on the .cc files that differ from COMMIT, or on all. It takes 5 to 15
#     seconds a file, and needs build/PRESET as tools/test.sh leaves it.
# usage: tools/lint.sh [--fix] [--tidy COMMIT|all] [--preset test] [--torch DIR]
source "$(dirname "$0")/setup.sh"

clang_format_version=23.1.5
preset=test
tidy_since=
fix=
while [ $# -gt 0 ]; do
  case $1 in
    --fix) fix=1; shift ;;
    --tidy) tidy_since=${2:?--tidy needs a commit, or all}; shift 2 ;;
    --preset) preset=${2:?--preset needs a name}; shift 2 ;;
    --torch) torch_dir=${2:?--torch needs a directory}; shift 2 ;;
    -h | --help) sed -n '2,7s/^# \?//p' "$0"; exit 0 ;;
    *) fail "unknown argument $1" "tools/lint.sh --help" ;;
  esac
done
cd "$root"

install_clang_format() {
  [ -f ".deps/clang-format-$clang_format_version.done" ] && return
  say "installing clang-format==$clang_format_version into .deps/ (for this check only)"
  stage pip-clang-format pip_install "$root/.deps/clang-format" \
    "clang-format==$clang_format_version"
  touch ".deps/clang-format-$clang_format_version.done"
}

# Prints the tracked files that are formatted, one per line. Generated tables are excluded.
formatted_files() {
  git ls-files '*.cc' '*.h' '*.cu' '*.cuh' '*.inc' '*.proto' | grep -v '_table\.inc$'
}

check_format() {
  local clang_format=.deps/clang-format/clang_format/data/bin/clang-format
  say "clang-format"
  if [ -n "$fix" ]; then
    formatted_files | xargs "$clang_format" -i
  else
    formatted_files | xargs "$clang_format" --dry-run --Werror
  fi
}

check_columns() {
  say "no line above 100 columns"
  git ls-files '*.cc' '*.h' '*.cu' '*.cuh' '*.inc' '*.proto' '*.py' '*.sh' '*.cmake' '*.yaml' \
    '*CMakeLists.txt' | python3 -c '
import sys
long = 0
for path in sys.stdin.read().split("\n")[:-1]:
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            if len(line.rstrip("\n")) > 100:
                long += 1
                print(f"{path}:{number}: {len(line) - 1} columns, the limit is 100")
sys.exit(long > 0)'
}

# Prints the .cc files for clang-tidy, one per line.
tidied_files() {
  if [ "$tidy_since" = all ]; then
    git ls-files '*.cc'
  else
    git diff --name-only --diff-filter=d "$tidy_since" -- '*.cc'
  fi
}

check_tidy() {
  [ -n "$tidy_since" ] || return 0
  local database=build/$preset/compile_commands.json
  [ -f "$database" ] ||
    fail "there is no $database" "tools/test.sh --preset $preset makes it"
  command -v clang-tidy >/dev/null || install_packages clang-tidy
  local files
  files=$(tidied_files | while read -r file; do
    grep -qF "/$file\"" "$database" && echo "$file"
  done)
  say "clang-tidy on $(printf '%s' "$files" | grep -c .) files"
  [ -z "$files" ] || printf '%s\n' "$files" |
    xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p "build/$preset" 2>/dev/null
}

install_clang_format
status=0
check_format || status=1
check_columns || status=1
check_tidy || status=1
[ $status -eq 0 ] && say "nothing to mend"
exit $status
