#!/usr/bin/env bash
# Checks every CUDA kernel of the tree, needing no package of ours: where there is a GPU on the GPU,
# else on the CPU by tests/cuda_emulator. `tools/gpu_check.sh --help` says more.
set -euo pipefail
for argument in "$@"; do
  if [ "$argument" = --install-nvcc ]; then
    source "$(dirname "$0")/setup.sh"
    install_nvcc
    break
  fi
done
exec python3 "$(dirname "$0")/gpu_check.py" "$@"
