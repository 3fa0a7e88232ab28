#!/usr/bin/env python3
"""Trains the task of grid.yaml with TRL's GRPOTrainer, for comparison with grid.py:
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install trl
    /tmp/venv/bin/python tests/bench/async/trl_peer.py build/release/bin/sluice --seeds 2 \\
        --out /tmp/trl.jsonl

Initial weights (those of `sluice ckpt init`), tokenizer, prompts, reward and hyper-parameters are
those of grid.yaml with the preset sync_grpo: GRPO's advantages, PPO's clip at 0.2, a mean over
tokens, no KL, AdamW at 1e-3 after 10 steps of warm-up, and 32 prompts with 8 answers of at most 7
tokens in a step. Each run adds a line to --out: the mean reward of the first and the last 25 steps,
the steps until the mean reward of 10 steps is 0.8, the seconds, and the reward of every 25th step.
`bench_seeds --json --file tests/bench/async/grid.yaml` prints the same of Sluice.
"""

import argparse
import json
import pathlib
import statistics
import subprocess
import tempfile
import time

import torch
import transformers
import trl
from datasets import Dataset

EXAMPLE = pathlib.Path(__file__).parents[3] / "configs/examples/digits"
WINDOW, GOAL = 10, 0.8


def reversed_share(completions, digits, completion_ids, **kwargs):
    """The verifier `text` with property reversed: equal places over the longer length, which is one
    more if the answer was cut before its end token."""
    scores = []
    for text, gold, ids in zip(completions, digits, completion_ids):
        wanted, cut = gold[::-1], ids[-1] != END
        equal = sum(a == b for a, b in zip(text, wanted))
        scores.append(equal / (max(len(text), len(wanted)) + cut))
    return scores


def train(options, seed, tokenizer):
    global END
    END = tokenizer.eos_token_id
    transformers.set_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        command = ["ckpt", "init", str(EXAMPLE), "--seed", str(seed), "-o", f"{folder}/model"]
        subprocess.run([options.sluice, *command], check=True, stdout=subprocess.DEVNULL)
        model = transformers.AutoModelForCausalLM.from_pretrained(
            f"{folder}/model", dtype=torch.float32
        )
    rows = [
        json.loads(line) for line in (EXAMPLE / "train.jsonl").read_text().splitlines()
    ]
    data = Dataset.from_list(
        [dict(prompt=f"{r['digits']}=", digits=r["digits"]) for r in rows]
    )
    with tempfile.TemporaryDirectory() as folder:
        arguments = trl.GRPOConfig(
            output_dir=folder,
            seed=seed,
            max_steps=options.steps,
            per_device_train_batch_size=256,
            num_generations=8,
            max_completion_length=7,
            temperature=1.0,
            top_k=0,
            top_p=1.0,
            beta=0.0,
            epsilon=0.2,
            loss_type="dapo",
            scale_rewards="group",
            learning_rate=1e-3,
            adam_beta1=0.9,
            adam_beta2=0.95,
            weight_decay=0.0,
            max_grad_norm=1.0,
            warmup_steps=10,
            lr_scheduler_type="constant_with_warmup",
            logging_steps=1,
            save_strategy="no",
            report_to=[],
            use_cpu=True,
            bf16=False,
            gradient_checkpointing=False,
            disable_tqdm=True,
        )
        trainer = trl.GRPOTrainer(
            model=model,
            reward_funcs=reversed_share,
            args=arguments,
            train_dataset=data,
            processing_class=tokenizer,
        )
        start = time.monotonic()
        trainer.train()
        seconds = time.monotonic() - start
        rewards = [
            row["reward"] for row in trainer.state.log_history if "reward" in row
        ]
    to_goal = next(
        (
            end
            for end in range(WINDOW, len(rewards) + 1)
            if statistics.mean(rewards[end - WINDOW : end]) >= GOAL
        ),
        None,
    )
    return dict(
        seed=seed,
        steps=len(rewards),
        seconds=round(seconds, 1),
        reward_first=statistics.mean(rewards[:25]),
        reward_last=statistics.mean(rewards[-25:]),
        steps_to_goal=to_goal,
        curve=[
            round(statistics.mean(rewards[at : at + 25]), 4)
            for at in range(0, len(rewards), 25)
        ],
    )


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sluice", help="the program of that name")
    parser.add_argument(
        "--out", type=pathlib.Path, required=True, help="file of the rows, JSON lines"
    )
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    tokenizer = transformers.AutoTokenizer.from_pretrained(EXAMPLE)
    for seed in range(options.first, options.first + options.seeds):
        row = train(options, seed, tokenizer)
        with options.out.open("a") as out:
            out.write(json.dumps(row) + "\n")
        print(json.dumps(row))


if __name__ == "__main__":
    main()
