#!/usr/bin/env bash
# Installs what is missing, builds, and trains the example: a 100 k parameter language model that
# starts from random weights and learns to reverse four digits by reinforcement learning, with all
# five daemons, on this machine.
#   tools/demo.sh [--torch DIR] [--set KEY=VALUE ..]
source "$(dirname "$0")/setup.sh"

sets=()
while [ $# -gt 0 ]; do
  case $1 in
    --torch) torch_dir=${2:?--torch needs a directory}; shift 2 ;;
    --set) sets+=(--set "${2:?--set needs KEY=VALUE}"); shift 2 ;;
    -h | --help) sed -n '2,5s/^# \?//p' "$0"; exit 0 ;;
    *) fail "unknown argument $1" "tools/demo.sh --help" ;;
  esac
done

setup release sluice sluice-controller sluice-queue sluice-rollout sluice-reward sluice-trainer \
  bench_e2e bench_seeds
bin=$root/build/release/bin
example=$root/configs/examples
out=$root/build/demo
rm -rf "$out" && mkdir -p "$out"

evaluate() {
  "$bin/sluice" eval "$@" --data "$example/digits/heldout.jsonl" --prompt digits --answer digits \
    --format '{digits}=' --verifier text --args '{"property": "reversed"}' --max-tokens 7
}

say "before training (random weights): greedy answers to 1,000 held-out prompts"
evaluate "$example/digits" --init-seed 1

say "training: configs/examples/digits.yaml"
"$bin/sluice" run "$example/digits.yaml" --set checkpoint.dir="$out/checkpoints" \
  ${sets[@]+"${sets[@]}"} -o json | tee "$out/result.json"

say "after training: greedy answers to the same prompts"
read_checkpoint='import json, sys; print(json.load(open(sys.argv[1]))["checkpoint"])'
evaluate "$(python3 -c "$read_checkpoint" "$out/result.json")"
