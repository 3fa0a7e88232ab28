"""Prints the numbers of TrainModelTest.TheBalanceOfTheExpertsIsThatOfTransformers.

    python3 router_balance_reference.py MODEL_DIR    # shared/data/models/qwen3moe-tiny

Needs torch, transformers and safetensors. The numbers of 2026-11 are of transformers 5.24.0.
"""

import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from transformers.models.qwen3_moe.modeling_qwen3_moe import load_balancing_loss_func

directory = sys.argv[1]
model = AutoModelForCausalLM.from_pretrained(
    directory, dtype=torch.float32, attn_implementation="eager"
)
reference = load_file(directory + "/reference.safetensors")
mask = reference["attention_mask"]
out = model(
    input_ids=reference["input_ids"],
    attention_mask=mask,
    output_router_logits=True,
    use_cache=False,
)
config = model.config
# The function takes f and P of all layers that it gets together, so it gets one at a time.
losses = [
    load_balancing_loss_func((layer,), config.num_experts, config.num_experts_per_tok, mask)
    for layer in out.router_logits
]
loss = sum(losses) / len(losses)
loss.backward()
print("layers", [x.item() for x in losses], "mean", loss.item())
for name, parameter in model.named_parameters():
    if parameter.grad is not None and ("mlp.gate.weight" in name or "embed" in name):
        print(name, "gradient norm", parameter.grad.double().norm().item())
