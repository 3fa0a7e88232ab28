#include "common/models/decode_model.h"

#include <algorithm>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/models/decoder.h"

namespace sluice {
namespace {

absl::Status CheckWeights(const ModelConfig& config, const TensorSet& weights) {
  // No step would read a tensor that the model does not have, and no fingerprint would cover it.
  const std::vector<TensorSpec> needed = config.Parameters(DType::kF32);
  if (weights.size() > needed.size()) {
    return absl::InvalidArgumentError(absl::StrCat("the weights have ", weights.size(),
                                                   " tensors, but the model has only ",
                                                   needed.size(), "; leave the others out"));
  }

  for (const TensorSpec& spec : needed) {
    const int64_t i = weights.Find(spec.name);
    if (i < 0)
      return absl::InvalidArgumentError(
          absl::StrCat("the weights have no tensor ", spec.name, ", which the model needs"));
    const TensorSpec& held = weights.spec(i);
    if (!IsWeightType(held.dtype) || held.shape != spec.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", spec.name, " is ", ShapeText(held.dtype, held.shape), ", but the model needs ",
          ShapeText(spec.dtype, spec.shape), " (or BF16, F16)"));
    }
  }
  return absl::OkStatus();
}

absl::Status CheckOptions(const ModelConfig& config, const DecodeModel::Options& options) {
  if (options.blocks < 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("blocks is ", options.blocks, ", but must be at least 1"));
  }
  if (options.threads < 1 || options.threads > DecodeModel::kMaxThreads) {
    return absl::InvalidArgumentError(absl::StrCat(
        "threads is ", options.threads, ", but must be from 1 to ", DecodeModel::kMaxThreads));
  }
  if (options.max_context < 1 || options.max_context > config.max_context) {
    return absl::InvalidArgumentError(absl::StrCat("max_context is ", options.max_context,
                                                   ", but must be from 1 to ", config.max_context,
                                                   ", the model's max_position_embeddings"));
  }
  return absl::OkStatus();
}

// Returns whether every matrix is bf16.
bool IsBf16(const ModelConfig& config, const TensorSet& weights) {
  const std::vector<TensorSpec> needed = config.Parameters(DType::kF32);
  return std::all_of(needed.begin(), needed.end(), [&](const TensorSpec& spec) {
    return spec.shape.size() < 2 || weights.spec(weights.Find(spec.name)).dtype == DType::kBF16;
  });
}

}  // namespace

absl::StatusOr<std::unique_ptr<DecodeModel>> DecodeModel::Create(const ModelConfig& config,
                                                                 const TensorSet* weights,
                                                                 const Options& options) {
  SLUICE_RETURN_IF_ERROR(CheckWeights(config, *weights));
  SLUICE_RETURN_IF_ERROR(CheckOptions(config, options));
  return IsBf16(config, *weights) ? Decoder<uint16_t>::Create(config, weights, options)
                                  : Decoder<float>::Create(config, weights, options);
}

}  // namespace sluice
