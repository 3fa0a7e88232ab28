#!/usr/bin/env bash
# Checks every CUDA kernel of the tree: on the GPU if there is one, else on the CPU with
# tests/cuda_emulator. It needs none of the packages of setup.sh. --help says more.
set -euo pipefail
for argument in "$@"; do
  if [ "$argument" = --install-nvcc ]; then
    source "$(dirname "$0")/setup.sh"
    install_nvcc
    break
  fi
done
exec python3 "$(dirname "$0")/gpu_check.py" "$@"
