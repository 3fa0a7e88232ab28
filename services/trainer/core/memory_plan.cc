#include "services/trainer/core/memory_plan.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/models/attention_grad_products.h"
#include "common/models/unit_memory.h"

namespace sluice::trainer {
namespace {

// Program, libraries, the data of a batch, and buffers of a fixed size.
constexpr uint64_t kFixedBytes = 400 << 20;
constexpr uint64_t kLogitsBytes = 128 << 20;  // See train_head.cc.
// Below this, most of a pass goes into packing weights and keys again for each micro-batch or part.
constexpr uint32_t kLeastMicroBatch = 256;

uint64_t CountParameters(const ModelConfig& config) {
  uint64_t parameters = 0;
  for (const TensorSpec& spec : config.Parameters(DType::kF32))
    parameters += static_cast<uint64_t>(NumElements(spec.shape).value_or(0));
  return parameters;
}

// Number of parameters of the largest layer, and of what is in no layer: as much as a pass has in
// memory at once of what the ranks share out.
uint64_t CountPassParameters(const ModelConfig& config) {
  std::vector<uint64_t> units(static_cast<size_t>(config.num_layers) + 1);
  for (const TensorSpec& spec : config.Parameters(DType::kF32))
    units[UnitOf(spec.name)] += static_cast<uint64_t>(NumElements(spec.shape).value_or(0));
  return units[0] + *std::max_element(units.begin() + 1, units.end());
}

// A critic has the decoder of the policy, and a head with one output in the place of the policy's.
uint64_t CountCriticParameters(ModelConfig config) {
  config.tie_word_embeddings = true;
  return CountParameters(config) + static_cast<uint64_t>(config.hidden_size) + 1;
}

// Bytes that a layer takes in a pass without gradients.
uint64_t LayerBytesPerToken(const ModelConfig& config) {
  return static_cast<uint64_t>(2 * KeptBytesPerToken(config) / config.num_layers);
}

// Bytes a token of a sequence that is computed in parts of `part` tokens: keys, values and their
// gradients; for each range of a part's queries seven arrays in which attention's backward pass has
// them by head, and two that wait to be added; a layer's output with the gradients of that and of
// its input, and what the output head keeps.
uint64_t CarriedBytesPerToken(const ModelConfig& config, uint64_t part) {
  const int64_t ranges = train_ops::AttentionRanges(static_cast<int64_t>(part),
                                                    config.num_heads / config.num_kv_heads);
  return static_cast<uint64_t>(4 * ((4 + ranges * (7 + 2)) * config.num_kv_heads * config.head_dim +
                                    (3 + 2) * config.hidden_size));
}

}  // namespace

uint64_t MemoryPlan::total() const {
  uint64_t sum = 0;
  for (const Row& row : rows) sum += row.bytes;
  return sum;
}

MemoryPlan PlanMemory(const MemoryPlanInput& in) {
  const bool lora = in.lora.rank > 0;
  const uint64_t parameters = CountParameters(in.config);
  uint64_t factors = 0;
  for (const TensorSpec& spec : in.config.Parameters(DType::kF32)) {
    if (lora && IsLoraTarget(in.lora, spec.name))
      factors += static_cast<uint64_t>(in.lora.rank * (spec.shape[0] + spec.shape[1]));
  }
  const std::string count = absl::StrFormat("%.1f M parameters", 1e-6 * double(parameters));
  MemoryPlan plan;
  const auto add = [&](const char* name, uint64_t bytes, std::string how) {
    plan.rows.push_back({name, bytes, std::move(how)});
  };
  const auto shards_from = [&](Shard least) -> uint64_t {
    return in.shard >= least ? static_cast<uint64_t>(in.ranks) : 1;
  };
  const uint64_t shards = shards_from(Shard::kOptimizer),
                 gradient_shards = shards_from(Shard::kGradients),
                 model_shards = shards_from(Shard::kParameters);
  const auto shared_out = [](uint64_t ranks) {
    return ranks == 1 ? "" : absl::StrCat("; shared out to ", ranks, " ranks");
  };
  // A row of numbers of which a pass has those of one layer, and of no layer, as a whole.
  const auto add_units = [&](const char* name, uint64_t bytes, uint64_t ranks, std::string how) {
    const uint64_t in_pass = ranks == 1 ? 0 : 4 * CountPassParameters(in.config);
    if (ranks > 1)
      absl::StrAppend(&how, shared_out(ranks), ", and ", GibText(in_pass),
                      " of the layer that a pass is in");
    add(name, bytes / ranks + in_pass, std::move(how));
  };
  add_units("parameters", 4 * parameters, model_shards, absl::StrCat(count, " in float32"));
  const uint64_t buffers = static_cast<uint64_t>(in.gradient_buffers);
  add_units("gradients", buffers * 4 * parameters, gradient_shards,
            buffers == 1 ? "float32"
                         : absl::StrCat(buffers,
                                        " times in float32: parts of the loss whose factors are "
                                        "known only later are kept apart"));
  const uint64_t trained = lora ? factors : parameters;
  if (lora) {
    add("low-rank factors", 8 * factors,
        absl::StrFormat("%.1f M numbers in float32, with gradients", 1e-6 * double(factors)));
  }
  const uint64_t moment_bytes = static_cast<uint64_t>(DTypeBytes(in.moments));
  add("moments", 2 * moment_bytes * trained / shards,
      absl::StrCat("two of AdamW in ", DTypeName(in.moments), shared_out(shards)));
  if (in.reference) {
    add("reference", 4 * parameters / model_shards,
        lora ? "the frozen weights in float32, which are the reference policy too"
             : absl::StrCat("the frozen policy in float32", shared_out(model_shards)));
  }
  if (in.critic) {
    const uint64_t critic = CountCriticParameters(in.config);
    add("critic", (4 + 4) * critic + 2 * moment_bytes * critic / shards,
        absl::StrFormat("%.1f M parameters in float32, with gradients and moments%s",
                        1e-6 * double(critic), shards == 1 ? "" : ", which are shared out"));
  }
  if (in.average) {
    add("average", 4 * parameters / model_shards,
        absl::StrCat("the averaged weights of prox ewma in float32", shared_out(model_shards)));
  }

  if (in.kept_versions > 0) {
    const uint64_t kept = static_cast<uint64_t>(in.kept_versions);
    add("older versions", (4 + kept * DTypeBytes(in.dtype)) * parameters,
        absl::StrCat(kept, " in ", DTypeName(in.dtype),
                     " for prox exact (queue.max_staleness + 1), and the model that scores with "
                     "them in float32"));
  }
  const bool teacher = in.distill.kind != DistillKind::kNone,
             full = in.distill.kind == DistillKind::kFull;
  if (teacher) {
    const uint64_t weights = CountParameters(in.teacher);
    add("teacher", 4 * weights,
        absl::StrFormat("%.1f M parameters in float32, frozen", 1e-6 * double(weights)));
  }

  // While a version is published there are its tensors and its chunks, besides those before it.
  // With deltas there are also the weights to which it is compared, and the delta itself, twice
  // while it is made. Versions that are kept as deltas take at most half of this.
  const uint64_t versions = static_cast<uint64_t>(in.retain_versions) + 2 + (in.deltas ? 2 : 0);
  if (in.rank == 0) {
    add("published versions", versions * parameters * DTypeBytes(in.dtype),
        absl::StrCat(
            "at most ", versions, " in ", DTypeName(in.dtype), ": weights.retain_versions, ",
            in.deltas ? "the last one for comparison, a delta, " : "",
            "and twice the one that is being made", in.ranks > 1 ? "; rank 0 alone has them" : ""));
  }

  const uint64_t tokens = std::max(in.micro_batch_tokens, in.longest),
                 kept = static_cast<uint64_t>(KeptBytesPerToken(in.config)),
                 layers = static_cast<uint64_t>(in.config.num_layers),
                 inputs = layers * static_cast<uint64_t>(in.config.hidden_size) * 4;
  // A sequence with more tokens than a micro-batch is computed in parts of that many.
  const uint64_t part = in.recompute == Recompute::kNone
                            ? tokens
                            : std::min<uint64_t>(tokens, in.micro_batch_tokens),
                 carried_tokens = part < tokens ? tokens : 0;
  // Of a sequence that the ranks share, a rank has every n-th part of at most 1/2n of it.
  const uint64_t ranks = static_cast<uint64_t>(std::max(1, in.ranks));
  const bool shares = in.context && ranks > 1 && carried_tokens > 0;
  const uint64_t own_tokens =
      shares ? std::min(tokens, std::max(part, (tokens + ranks - 1) / ranks + tokens / (2 * ranks)))
             : tokens;
  // The gradients of a layer's activations exist beside them.
  const uint64_t again = own_tokens * inputs + part * 2 * kept / layers +
                         carried_tokens * CarriedBytesPerToken(in.config, part);
  // Most tokens of a micro-batch of which all activations are kept. Not every one is full, so under
  // Recompute::kAuto a smaller one may take more than the largest.
  uint64_t whole_tokens = part;
  if (RecomputesLayers(in.recompute, in.config, static_cast<int64_t>(part), in.most_kept_bytes)) {
    whole_tokens = in.recompute == Recompute::kAuto
                       ? std::min(part, static_cast<uint64_t>(in.most_kept_bytes) / kept)
                       : 0;
  }
  const uint64_t whole = whole_tokens * (kept + kept / layers);
  if (shares && in.shard >= Shard::kGradients) {
    // A rank waits for the others before its backward pass, and may take part in their long
    // sequences meanwhile.
    add("activations", whole + again,
        absl::StrCat(whole_tokens, " tokens, all of ", layers, " layers, and beside them at most ",
                     own_tokens, " of a sequence of ", tokens,
                     " that the ranks share, the inputs of all layers"));
  } else if (whole > again || (whole_tokens == part && carried_tokens == 0)) {
    // If all micro-batches keep all and no sequence is longer, nothing is computed again.
    add("activations", whole, absl::StrCat(whole_tokens, " tokens, all of ", layers, " layers"));
  } else {
    add("activations", again,
        absl::StrCat(
            tokens, " tokens, ",
            own_tokens < tokens ? absl::StrCat("at most ", own_tokens, " on a rank, ") : "",
            "the inputs of ", layers, " layers and one whole layer",
            part < tokens ? absl::StrCat(", ", part, " tokens at a time") : ""));
  }
  if (teacher) {
    // Its pass ends before that of the policy begins; what it leaves are the hidden states, or the
    // most likely tokens.
    const uint64_t pass = part * LayerBytesPerToken(in.teacher) +
                          carried_tokens * CarriedBytesPerToken(in.teacher, part),
                   own = plan.rows.back().bytes;
    const uint64_t width = static_cast<uint64_t>(in.teacher.hidden_size),
                   top = static_cast<uint64_t>(in.distill.top_k);
    const uint64_t left = full ? tokens * (4 * width + 8 * top) : 0;
    add("teacher's pass", std::max(pass, own + left) - own,
        absl::StrCat("what a pass without gradients over ", tokens,
                     " tokens takes beyond the activations of the policy"));
  }
  const uint64_t logits =
      std::min(kLogitsBytes, tokens * static_cast<uint64_t>(in.config.vocab_size) * 4);
  add("logits", logits + logits / 2 + (full ? logits : 0),
      absl::StrCat("a part of the rows, vocabulary ", in.config.vocab_size,
                   full ? ", of policy and teacher" : ""));
  add("other", kFixedBytes, "program, libraries, a batch and buffers");
  return plan;
}

uint64_t AvailableMemory(const MemoryPlanInput& input, uint64_t machine) {
  return input.memory == 0 ? machine : std::min(input.memory, machine);
}

uint32_t FitMicroBatch(MemoryPlanInput input, uint64_t available) {
  const uint32_t most = input.micro_batch_tokens, least = std::min(most, kLeastMicroBatch);
  while (PlanMemory(input).total() > available) {
    if (input.micro_batch_tokens <= least) return most;
    input.micro_batch_tokens =
        std::max(least, input.micro_batch_tokens - std::max(1u, input.micro_batch_tokens / 16));
  }
  return input.micro_batch_tokens;
}

absl::Status CheckFits(const MemoryPlan& plan, uint64_t available) {
  if (plan.total() <= available) return absl::OkStatus();
  std::vector<std::string> parts;
  for (const MemoryPlan::Row& row : plan.rows)
    parts.push_back(absl::StrCat(row.name, " ", GibText(row.bytes)));
  return ErrorWith(
      absl::StatusCode::kResourceExhausted,
      {.reason = "TRAINER_MEMORY",
       .hint = "lower the longest sequence (data.order.max_prompt + rollout.max_response, or "
               "model.max_context) and trainer.batching.micro_batch_tokens, lower "
               "weights.retain_versions, set trainer.batching.recompute_activations: layer, share "
               "out more to several ranks (resources.trainer, trainer.shard), keep the moments in "
               "bfloat16 (trainer.optimizer.moments), or "
               "use a machine with more memory"},
      absl::StrCat("the trainer needs ", GibText(plan.total()), " of memory, and may use ",
                   GibText(available), " (what this machine or container has, or trainer.memory): ",
                   absl::StrJoin(parts, ", ")));
}

std::string GibText(uint64_t bytes) {
  return absl::StrFormat("%.2f GiB", static_cast<double>(bytes) / (1 << 30));
}

}  // namespace sluice::trainer
