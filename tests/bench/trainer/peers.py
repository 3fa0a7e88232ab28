"""Compares a training step of bench_trainer_step with one of transformers and torch on the CPU.
Both have the same shape, random weights, GRPO advantages, PPO's clipped ratio over 8 answers to
each prompt, clipping of the gradient, and AdamW:
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers
    /tmp/venv/bin/python tests/bench/trainer/peers.py build/release/bin/bench_trainer_step
        [--threads N] [--dtype float32|bfloat16] [--vocab 151936] [--rounds 3]

The programs run in turn. The output has one figure per line, as that of bench_trainer_step --json,
the median of the rounds: tokens/s with the rate of transformers as `baseline`, once with a prompt
of its own for each answer, which is how transformers computes, and once with one prompt for the 8
answers of a group, which Sluice stores once; then the peak memory of the two processes.
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time


def shape(options):
    return dict(
        architectures=["Qwen3ForCausalLM"],
        model_type="qwen3",
        vocab_size=options.vocab,
        hidden_size=512,
        intermediate_size=1536,
        num_hidden_layers=8,
        num_attention_heads=8,
        num_key_value_heads=4,
        head_dim=64,
        max_position_embeddings=16384,
        rms_norm_eps=1e-6,
        rope_theta=10000.0,
        tie_word_embeddings=True,
        hidden_act="silu",
        torch_dtype="float32",
        initializer_range=0.02,
        eos_token_id=1,
    )


def transformers_steps(options):
    """Prints the seconds of each step as JSON."""
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    torch.manual_seed(1)
    config = transformers.AutoConfig.from_pretrained(options.model)
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    sequences, length = 8 * options.groups, options.prompt + options.answer

    def step():
        tokens = torch.randint(2, options.vocab, (sequences, length))
        old = torch.full((sequences, options.answer), -4.1)
        reward = torch.rand(options.groups, 8)
        advantage = (reward - reward.mean(1, keepdim=True)) / (reward.std(1, keepdim=True) + 1e-6)
        advantage = advantage.reshape(-1, 1)
        start = time.monotonic()
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", torch.bfloat16, enabled=options.dtype == "bfloat16"):
            # Logits of the answers alone.
            logits = model(input_ids=tokens, logits_to_keep=options.answer + 1).logits[:, :-1]
        logits = logits.float()
        chosen = logits.gather(-1, tokens[:, options.prompt :].unsqueeze(-1)).squeeze(-1)
        ratio = torch.exp(chosen - torch.logsumexp(logits, -1) - old)
        loss = torch.maximum(-advantage * ratio, -advantage * ratio.clamp(0.8, 1.28)).mean()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return time.monotonic() - start

    step()  # A warm-up.
    print(json.dumps([step() for _ in range(options.steps)]))


def run(command):
    """Returns what the command prints and its peak memory in bytes."""
    child = subprocess.Popen(list(map(str, command)), stdout=subprocess.PIPE, text=True)
    text = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    if status != 0:
        sys.exit(f"{command[0]} failed")
    return text, usage.ru_maxrss * 1024


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("bench", help="the program bench_trainer_step")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--dtype", choices=["float32", "bfloat16"], default="float32")
    parser.add_argument("--vocab", type=int, default=8192)
    parser.add_argument("--groups", type=int, default=1, help="prompts, with 8 answers each")
    parser.add_argument("--prompt", type=int, default=256, help="tokens")
    parser.add_argument("--answer", type=int, default=128, help="tokens")
    parser.add_argument("--steps", type=int, default=3, help="measured steps of a run")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each program")
    parser.add_argument("--model", help=argparse.SUPPRESS)  # Set in the process of transformers.
    options = parser.parse_args()
    if options.model:
        return transformers_steps(options)

    tokens = 8 * options.groups * (options.prompt + options.answer)
    own, shared, peer, own_peak, peer_peak = [], [], [], [], []
    with tempfile.TemporaryDirectory() as folder:
        pathlib.Path(folder, "config.json").write_text(json.dumps(shape(options)))
        names = ["threads", "dtype", "groups", "prompt", "answer"]
        flags = [x for name in names for x in (f"--{name}", getattr(options, name))]
        for _ in range(options.rounds):
            text, peak = run([options.bench, folder, *flags, "--steps", options.steps, "--json"])
            rows = {row["name"]: row for row in map(json.loads, text.splitlines())}
            total, copy = rows["trainer_step_total"], rows["trainer_step_snapshot"]
            # The copy of all weights that the program makes is no part of a step.
            shared.append(tokens / (total["value"] - copy["value"]) * 1e3)
            own.append(tokens / (total["baseline"] - copy["baseline"]) * 1e3)
            own_peak.append(peak)

            text, peak = run(
                [sys.executable, __file__, options.bench, *flags, "--vocab", options.vocab,
                 "--steps", options.steps, "--model", folder]
            )
            peer.append(tokens / statistics.median(json.loads(text.splitlines()[-1])))
            peer_peak.append(peak)

    for name, values, baselines, unit in [
        ("trainer_peer_unshared_prompts", own, peer, "tokens/s"),
        ("trainer_peer_shared_prompts", shared, peer, "tokens/s"),
        ("trainer_peer_peak_memory", own_peak, peer_peak, "bytes"),
    ]:
        value, baseline = statistics.median(values), statistics.median(baselines)
        print(json.dumps(dict(name=name, value=value, unit=unit, baseline=baseline,
                              ratio=value / baseline, runs=options.rounds)))


if __name__ == "__main__":
    main()
