#!/usr/bin/env bash
# Checks the formatting of the tracked sources, and changes nothing unless --fix is given:
#   - clang-format (.clang-format), of a fixed version, installed into .deps/
#   - no line above 100 columns
#   - clang-tidy (.clang-tidy), with --tidy, on the .cc files that differ from COMMIT, or on all. It
#     takes 5 to 15 seconds per file. With --most N it checks only the first N files.
# usage: tools/lint.sh [--fix] [--tidy COMMIT|all] [--most N] [--torch DIR]
source "$(dirname "$0")/setup.sh"

clang_format_version=23.1.5
tidy_since=
most_tidied=100000
fix=
while [ $# -gt 0 ]; do
  case $1 in
    --fix) fix=1; shift ;;
    --tidy) tidy_since=${2:?--tidy needs a commit, or all}; shift 2 ;;
    --most) most_tidied=${2:?--most needs a number}; shift 2 ;;
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
  # The excluded files are made of deploy/monitoring/table.yaml.
  git ls-files '*.cc' '*.h' '*.cu' '*.cuh' '*.inc' '*.proto' '*.py' '*.sh' '*.cmake' '*.yaml' \
    '*CMakeLists.txt' ':!deploy/monitoring/rules.yaml' ':!deploy/monitoring/prometheusrule.yaml' |
    python3 -c '
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

# Reads compile commands of build/dev, because a unity build has none for a single file. clang 14
# knows _Float16 only with avx512fp16.
check_tidy() {
  [ -n "$tidy_since" ] || return 0
  command -v clang-tidy >/dev/null || install_packages clang-tidy
  install_torch
  stage configure-dev cmake -S "$root" --preset dev -DSLUICE_TORCH="$torch_dir"
  stage generate-dev ninja -C build/dev sluice_generated

  local files count
  files=$(tidied_files | while read -r file; do
    grep -qF "/$file\"" build/dev/compile_commands.json && echo "$file"
  done)
  count=$(printf '%s' "$files" | grep -c .)
  say "clang-tidy on $count files"
  if [ "$count" -gt "$most_tidied" ]; then
    say "only the first $most_tidied of them (--most)"
    files=$(printf '%s\n' "$files" | head -n "$most_tidied")
  fi
  [ -z "$files" ] || printf '%s\n' "$files" |
    xargs -P "$(nproc)" -n 1 clang-tidy --quiet -p build/dev --extra-arg=-mavx512fp16 2>/dev/null
}

install_clang_format
status=0
check_format || status=1
check_columns || status=1
check_tidy || status=1
[ $status -eq 0 ] && say "no problems found"
exit $status
