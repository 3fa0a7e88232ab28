#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/file.h"
#include "common/checkpoint/model_config.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

// A Hugging Face model directory, without its weights: those are read apart, and need not be there
// (a random start).
struct ModelDir {
  std::string path;
  ModelConfig config;
  // generation_config.json's eos_token_id (a number or a list), else config.json's.
  std::vector<int32_t> stop_ids;
  std::string tokenizer_path;         // tokenizer.json; empty if the directory has none.
  std::string tokenizer_config_path;  // tokenizer_config.json; empty if the directory has none.
  // Of chat_template.jinja, else of tokenizer_config.json; empty if there is none.
  std::string chat_template;
};

// NOT_FOUND: no such directory, or no config.json in it. Else as ParseModelConfig; messages name
// the file.
absl::StatusOr<ModelDir> ReadModelDir(const std::string& path);

// The weights, converted to `dtype`: model.safetensors, or the shards that
// model.safetensors.index.json lists. Each parameter of the config occurs once with its shape;
// nothing else does, but for tied lm_head.weight and rotary_emb.inv_freq, which are skipped.
// NOT_FOUND: neither file. INVALID_ARGUMENT: a missing, extra, misshapen or doubled tensor, one
// with a number that is not finite, or a malformed file.
absl::StatusOr<TensorSet> ReadWeights(const ModelDir& dir, DType dtype);

// The parameters with the types that they are stored in, sorted by name. Reads the files' headers
// alone; errors as ReadWeights.
absl::StatusOr<std::vector<TensorSpec>> ReadWeightSpecs(const ModelDir& dir);

// Hands over each parameter as it is stored, in the order of their names, with one of them in
// memory at a time. Errors as ReadWeights; those of a number that is not finite come before `take`.
absl::Status ReadEachWeight(
    const ModelDir& dir,
    const std::function<void(const TensorSpec& spec, const std::byte* data)>& take);

// Digests of the files that a call has written, by name.
using WrittenFiles = std::map<std::string, FileDigest>;

// Writes a directory that transformers loads: `source`'s configuration and tokenizer files,
// config.json with the weights' dtype (of mixed ones, the type of most elements), and the weights
// in files of at most 5 GB. Equal weights make equal bytes.
//
// WriteModelDir builds a temporary directory beside `path`, syncs it and renames it to `path`,
// which must not exist (ALREADY_EXISTS). WriteModelFiles writes into a directory that exists, for a
// caller who adds files of its own before it renames; it adds what it wrote to `written`, if given.
absl::Status WriteModelDir(const std::string& path, const ModelDir& source,
                           const TensorSet& weights);
absl::Status WriteModelFiles(const std::string& dir, const ModelDir& source,
                             const TensorSet& weights, WrittenFiles* written = nullptr);

}  // namespace sluice
