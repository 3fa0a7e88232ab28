#!/usr/bin/env bash
# Installs the packages that Sluice needs, and builds it. The other scripts of this folder source
# this file. demo.sh and test.sh call:
#   setup PRESET TARGET..    (no target: builds everything)
# Debian packages are listed in tools/packages.txt. LibTorch and Arrow come from the PyPI wheels
# torch and pyarrow and are installed into .deps/ in the tree, as is the openai client for the
# tests. Whatever is installed already is kept.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
torch_version=2.13.0
arrow_version=26.0.1
openai_version=3.54.0
kubernetes_validate_version=1.37.0
grafana_schema_version=13.2.3
typescript_version=7.0.2
# Wheels of one CUDA release: the compiler, its headers, and the libraries that it needs to run.
nvcc_wheels="nvidia-cuda-nvcc==13.5.37 nvidia-nvvm==13.5.37 nvidia-cuda-crt==13.5.37
  nvidia-cuda-runtime==13.5.37 nvidia-cuda-cccl==13.3.5.0.6"
torch_dir=

say() { printf '\033[1m==>\033[0m %s\n' "$*" >&2; }
# fail ERROR [HINT..]: prints an error with hints, and exits.
fail() {
  printf 'error: %s\n' "$1" >&2
  shift
  for hint in "$@"; do printf 'hint: %s\n' "$hint" >&2; done
  exit 1
}

# stage NAME COMMAND..: runs a command with its output in a log file. If the command fails, prints
# the end of the log and exits.
stage() {
  local name=$1 log="$root/build/logs/$1.log"; shift
  mkdir -p "$root/build/logs"
  "$@" >"$log" 2>&1 && return
  tail -n 30 "$log" >&2
  fail "$name failed" "the whole log is $log" "fix the error above and run the same command again"
}

# install_packages [PACKAGE..]: installs the packages that are missing; without arguments, those of
# tools/packages.txt.
install_packages() {
  local missing=() package
  [ $# -gt 0 ] || set -- $(grep -v '^#' "$root/tools/packages.txt")
  for package in "$@"; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' ||
      missing+=("$package")
  done
  [ ${#missing[@]} -eq 0 ] && return
  local sudo=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null ||
      fail "these packages are missing, you are not root, and there is no sudo: ${missing[*]}" \
        "as root: apt-get install ${missing[*]}"
    sudo=(sudo)
  fi
  say "installing ${#missing[@]} Debian packages"
  stage apt-update "${sudo[@]}" apt-get update
  stage apt-install "${sudo[@]}" env DEBIAN_FRONTEND=noninteractive \
    apt-get install -y --no-install-recommends "${missing[@]}"
}

# pip_install DIRECTORY PACKAGE..
pip_install() {
  python3 -m pip install --no-input --disable-pip-version-check --upgrade --target "$@"
}

install_torch() {
  if [ -n "$torch_dir" ]; then
    [ -d "$torch_dir/include" ] && [ -d "$torch_dir/lib" ] ||
      fail "--torch $torch_dir has no include/ and lib/" \
        "give the directory of a LibTorch, or of the Python package torch"
    torch_dir=$(cd "$torch_dir" && pwd)
    return
  fi
  torch_dir=$root/.deps/python/torch
  [ -f "$root/.deps/torch-$torch_version.done" ] && return
  local wheel=${SLUICE_TORCH_WHEEL:-torch==$torch_version}
  say "installing $wheel into .deps/ (LibTorch; several hundred MB)"
  mkdir -p "$root/.deps"
  stage pip-torch pip_install "$root/.deps/python" "$wheel"
  touch "$root/.deps/torch-$torch_version.done"
}

# Installs the libraries of Apache Arrow, which the wheel of pyarrow carries. Without them, files of
# Parquet and Arrow cannot be read.
install_arrow() {
  [ -f "$root/.deps/arrow-$arrow_version.done" ] && return
  say "installing pyarrow==$arrow_version into .deps/ (libraries of Apache Arrow; 55 MB)"
  mkdir -p "$root/.deps"
  stage pip-arrow pip_install "$root/.deps/arrow" "pyarrow==$arrow_version"
  touch "$root/.deps/arrow-$arrow_version.done"
}

# Installs the public OpenAI client, which the tests of the HTTP API use.
install_openai() {
  [ -f "$root/.deps/openai-$openai_version.done" ] && return
  say "installing openai==$openai_version into .deps/ (tests only)"
  stage pip-openai pip_install "$root/.deps/openai" "openai==$openai_version"
  touch "$root/.deps/openai-$openai_version.done"
}

# Installs what the tests of deploy/ render and check manifests with. Some hosts have a kubectl that
# is not Debian's; it is kept.
install_kubernetes_tools() {
  command -v kubectl >/dev/null || install_packages kubernetes-client
  local version=$kubernetes_validate_version
  [ -f "$root/.deps/kubernetes-validate-$version.done" ] && return
  say "installing kubernetes-validate==$version into .deps/ (tests only)"
  stage pip-kubernetes-validate pip_install "$root/.deps/kubernetes-validate" \
    "kubernetes-validate==$version"
  touch "$root/.deps/kubernetes-validate-$version.done"
}

# Installs the browser in which the tests open the controller's web page.
install_browser() {
  command -v chromium >/dev/null || install_packages chromium
}

# Installs the types of Grafana's dashboards, if there is an npm. Without them the test that checks
# the dashboards against them is skipped.
install_grafana_schema() {
  local done=$root/.deps/grafana-schema-$grafana_schema_version.done
  [ -f "$done" ] || ! command -v npm >/dev/null && return
  say "installing @grafana/schema@$grafana_schema_version into .deps/ (tests only)"
  stage npm-grafana-schema npm install --no-audit --no-fund --prefix "$root/.deps/grafana" \
    "@grafana/schema@$grafana_schema_version" "typescript@$typescript_version"
  touch "$done"
}

# Installs CUDA's compiler if there is none. It compiles the kernels without a GPU too. If it cannot
# be installed, that is not an error: tools/gpu_check.sh then reports that it is missing.
install_nvcc() {
  command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ] ||
    [ -f "$root/.deps/nvcc.done" ] && return
  say "installing nvcc into .deps/ (130 MB; the tests compile CUDA kernels with it)"
  mkdir -p "$root/build/logs"
  # shellcheck disable=SC2086  # The list must be split into words.
  if pip_install "$root/.deps/cuda" $nvcc_wheels >"$root/build/logs/pip-nvcc.log" 2>&1; then
    touch "$root/.deps/nvcc.done"
  else
    say "nvcc could not be installed (build/logs/pip-nvcc.log); kernels are only emulated"
  fi
}

setup() {
  local preset=$1; shift
  command -v apt-get >/dev/null ||
    fail "this script supports only Debian and its derivatives, and there is no apt-get" \
      "install the equivalents of tools/packages.txt, then:
      cmake --preset $preset -DSLUICE_TORCH=DIR && cmake --build build/$preset"
  install_packages
  install_torch
  install_arrow
  local build=$root/build/$preset
  stage "configure-$preset" cmake -S "$root" --preset "$preset" -DSLUICE_TORCH="$torch_dir"
  # `grep -q` would end at the first match, and ninja, which still writes, with an error.
  if ninja -C "$build" -n "$@" 2>/dev/null | grep 'Building' >/dev/null; then
    say "building ($preset; the first time takes some minutes, log: build/logs/build-$preset.log)"
  fi
  stage "build-$preset" ninja -C "$build" "$@"
}
