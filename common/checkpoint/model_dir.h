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
#include "common/checkpoint/shards.h"
#include "common/checkpoint/tensor_set.h"

namespace sluice {

// A Hugging Face model directory without its weights. These are read separately, and may be missing
// if the job starts from random weights.
struct ModelDir {
  std::string path;
  ModelConfig config;
  // The end tokens: eos_token_id of generation_config.json (a number or a list), else of
  // config.json.
  std::vector<int32_t> stop_ids;
  std::string tokenizer_path;         // tokenizer.json; empty if the directory has none.
  std::string tokenizer_config_path;  // tokenizer_config.json; empty if the directory has none.
  // From chat_template.jinja, else from tokenizer_config.json; empty if there is none.
  std::string chat_template;
};

// Reads the configuration of a model directory. Error messages name the file.
// NOT_FOUND: there is no such directory, or no config.json in it.
// FAILED_PRECONDITION: `path` is not a directory.
// Any other error: as ParseModelConfig().
absl::StatusOr<ModelDir> ReadModelDir(const std::string& path);

// Reads the weights and converts them to `dtype`. They are in model.safetensors, or in the files
// that model.safetensors.index.json lists (shards). The files must hold each parameter of the
// config once, with its shape, and nothing else; only rotary_emb.inv_freq, and lm_head.weight of a
// tied head, are skipped.
// NOT_FOUND: neither file exists.
// INVALID_ARGUMENT: a tensor is missing, unknown, of the wrong shape or present twice, has an
// element that is not finite, or a file is malformed.
absl::StatusOr<TensorSet> ReadWeights(const ModelDir& dir, DType dtype);

// Returns the parameters with their stored types, sorted by name. Reads only the files' headers.
// Errors: as ReadWeights().
absl::StatusOr<std::vector<TensorSpec>> ReadWeightSpecs(const ModelDir& dir);

// Calls `take` with each parameter as it is stored, in the order of names. Only one parameter is in
// memory at a time. Errors: as ReadWeights(); a parameter that is not finite is reported before
// `take` is called for it.
absl::Status ReadEachWeight(
    const ModelDir& dir,
    const std::function<void(const TensorSpec& spec, const std::byte* data)>& take);

// WriteModelDir() and WriteModelFiles() write files that transformers can load: the configuration
// and tokenizer files of `source`, a config.json with the dtype of the weights (if they are mixed,
// the type of most elements), and the weights (shards.h). Equal weights give equal bytes.
//
// WriteModelDir() makes the directory `path` as WriteDirAtomic() does.
// ALREADY_EXISTS: `path` exists.
// WriteModelFiles() writes into an existing directory, for callers that add files before they
// rename it. If `written` is given, the digests of the files are added to it.
absl::Status WriteModelDir(const std::string& path, const ModelDir& source,
                           const TensorSet& weights);
absl::Status WriteModelFiles(const std::string& dir, const ModelDir& source,
                             const TensorSource& weights, WrittenFiles* written = nullptr,
                             int64_t max_shard_bytes = kMaxShardBytes);

}  // namespace sluice
