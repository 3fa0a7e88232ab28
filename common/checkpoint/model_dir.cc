#include "common/checkpoint/model_dir.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <map>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/checkpoint/json.h"
#include "common/checkpoint/safetensors.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxJsonBytes = 16 << 20;
constexpr int kMaxJsonDepth = 32;
constexpr int64_t kMaxShardBytes = 5'000'000'000;
constexpr char kSingleFile[] = "model.safetensors";
constexpr char kIndexFile[] = "model.safetensors.index.json";

// Copied from the source directory to a written one, where they exist.
constexpr const char* kSideFiles[] = {"generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja",
                                      "special_tokens_map.json", "added_tokens.json", "vocab.json", "merges.txt", "tokenizer.model"};

std::string In(const std::string& dir, absl::string_view name) { return absl::StrCat(dir, "/", name); }

// The file's text, or nothing if there is no such file.
absl::StatusOr<std::optional<std::string>> ReadIfThere(const std::string& path) {
  auto text = ReadFile(path, kMaxJsonBytes);
  if (text.ok()) return std::optional<std::string>(*std::move(text));
  if (absl::IsNotFound(text.status())) return std::optional<std::string>();
  return text.status();
}

// The object in a JSON file; an empty one if there is no such file.
absl::StatusOr<Json> ReadObject(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadIfThere(path));
  if (!text.has_value()) return Json::object();
  SLUICE_ASSIGN_OR_RETURN(Json json, ParseJson(*text, path, kMaxJsonDepth));
  if (!json.is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": is no JSON object"));
  return json;
}

absl::StatusOr<std::vector<int32_t>> ReadStopIds(const std::string& dir, const ModelConfig& config) {
  const std::string path = In(dir, "generation_config.json");
  SLUICE_ASSIGN_OR_RETURN(const Json json, ReadObject(path));
  std::vector<int32_t> ids = config.eos_ids;
  if (json.contains("eos_token_id") && !json["eos_token_id"].is_null()) {
    auto own = TokenIds(json["eos_token_id"]);
    if (!own.ok()) return Annotate(own.status(), absl::StrCat(path, ": eos_token_id"));
    ids = *std::move(own);
  }
  for (const int32_t id : ids) {
    if (id >= config.vocab_size) {
      return absl::InvalidArgumentError(absl::StrCat(dir, ": end token ", id, " is not below vocab_size ", config.vocab_size));
    }
  }
  return ids;
}

// tokenizer_config.json holds one template, or a list of {name, template} whose "default" counts.
absl::StatusOr<std::string> ReadChatTemplate(const std::string& dir) {
  SLUICE_ASSIGN_OR_RETURN(std::optional<std::string> own, ReadIfThere(In(dir, "chat_template.jinja")));
  if (own.has_value()) return *std::move(own);
  const std::string path = In(dir, "tokenizer_config.json");
  SLUICE_ASSIGN_OR_RETURN(const Json json, ReadObject(path));
  const auto it = json.find("chat_template");
  if (it == json.end() || it->is_null()) return std::string();
  if (it->is_string()) return it->get<std::string>();
  if (it->is_array()) {
    for (const Json& entry : *it) {
      if (entry.is_object() && entry.value("name", Json()) == "default" && entry.value("template", Json()).is_string()) {
        return entry["template"].get<std::string>();
      }
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(path, ": chat_template is neither a string nor a list with a template named default"));
}

// A file of weights and the names it must hold; no names: whatever it holds (a directory without an index).
struct Shard {
  std::string path;
  std::optional<std::vector<std::string>> names;  // Sorted.
};

absl::StatusOr<std::vector<Shard>> FindShards(const std::string& dir) {
  if (PathExists(In(dir, kSingleFile))) return std::vector<Shard>{{In(dir, kSingleFile), std::nullopt}};
  const std::string path = In(dir, kIndexFile);
  if (!PathExists(path)) return absl::NotFoundError(absl::StrCat(dir, ": has neither ", kSingleFile, " nor ", kIndexFile));
  SLUICE_ASSIGN_OR_RETURN(const Json json, ReadObject(path));
  const auto map = json.find("weight_map");
  if (map == json.end() || !map->is_object()) return absl::InvalidArgumentError(absl::StrCat(path, ": has no weight_map"));
  std::map<std::string, std::vector<std::string>> files;
  for (const auto& [name, file] : map->items()) {
    if (!file.is_string()) return absl::InvalidArgumentError(absl::StrCat(path, ": ", Printable(name), " is in no file"));
    const std::string plain = file.get<std::string>();
    if (absl::StrContains(plain, '/') || absl::StrContains(plain, '\0') || absl::StartsWith(plain, ".") || !absl::EndsWith(plain, ".safetensors")) {
      return absl::InvalidArgumentError(absl::StrCat(path, ": \"", Printable(plain), "\" is no plain name of a .safetensors file"));
    }
    files[plain].push_back(name);
  }
  std::vector<Shard> shards;
  for (auto& [file, names] : files) {
    std::sort(names.begin(), names.end());
    shards.push_back({In(dir, file), std::move(names)});
  }
  return shards;
}

absl::Status CheckIndex(const Shard& shard, const SafetensorsFile& file) {
  if (!shard.names.has_value()) return absl::OkStatus();
  std::vector<std::string> held;
  for (const auto& entry : file.entries()) held.push_back(entry.spec.name);
  std::sort(held.begin(), held.end());
  for (const std::string& name : *shard.names) {
    if (!std::binary_search(held.begin(), held.end(), name)) {
      return absl::InvalidArgumentError(absl::StrCat(shard.path, ": lacks tensor ", Printable(name), ", which ", kIndexFile, " places there"));
    }
  }
  for (const std::string& name : held) {
    if (!std::binary_search(shard.names->begin(), shard.names->end(), name)) {
      return absl::InvalidArgumentError(absl::StrCat(shard.path, ": holds tensor ", Printable(name), ", which ", kIndexFile, " does not place there"));
    }
  }
  return absl::OkStatus();
}

bool MayBeSkipped(const ModelConfig& config, absl::string_view name) {
  return absl::EndsWith(name, "rotary_emb.inv_freq") || (config.tie_word_embeddings && name == "lm_head.weight");
}

// Fills the parameters that `file` holds.
absl::Status ReadShard(const SafetensorsFile& file, const ModelConfig& config, TensorSet* weights, std::vector<bool>* filled) {
  std::vector<std::byte> stored;
  for (const auto& entry : file.entries()) {
    const TensorSpec& spec = entry.spec;
    const std::string where = absl::StrCat(file.path(), ": tensor ", Printable(spec.name));
    const int64_t i = weights->Find(spec.name);
    if (i < 0 && MayBeSkipped(config, spec.name)) continue;
    if (i < 0) return absl::InvalidArgumentError(absl::StrCat(where, " is no parameter of this ", config.architecture));
    if ((*filled)[i]) return absl::InvalidArgumentError(absl::StrCat(where, " occurs in two files"));
    const TensorSpec& wanted = weights->spec(i);
    if (spec.shape != wanted.shape) {
      return absl::InvalidArgumentError(absl::StrCat(where, " is ", ShapeText(spec.dtype, spec.shape), ", config.json asks for ", ShapeText(wanted.dtype, wanted.shape)));
    }
    stored.resize(entry.bytes);
    SLUICE_RETURN_IF_ERROR(file.Read(entry, absl::MakeSpan(stored)));
    const absl::Status converted = ConvertElements(spec.dtype, stored.data(), wanted.dtype, weights->data(i), weights->elements(i));
    if (!converted.ok()) return Annotate(converted, where);
    if (const int64_t bad = FirstNonFinite(wanted.dtype, weights->data(i), weights->elements(i)); bad >= 0) {
      return absl::InvalidArgumentError(absl::StrCat(where, ": element ", bad, " is infinite or no number as ", DTypeName(wanted.dtype)));
    }
    (*filled)[i] = true;
  }
  return absl::OkStatus();
}

// transformers' name of a weight type.
absl::StatusOr<std::string> TorchName(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "float32";
    case DType::kF16: return "float16";
    case DType::kBF16: return "bfloat16";
    default: return absl::InvalidArgumentError(absl::StrCat("weights of type ", DTypeName(dtype), " cannot be written as a model"));
  }
}

absl::Status WriteConfig(const std::string& dir, const ModelDir& source, DType dtype) {
  SLUICE_ASSIGN_OR_RETURN(Json json, ReadObject(In(source.path, "config.json")));
  SLUICE_ASSIGN_OR_RETURN(const std::string name, TorchName(dtype));
  if (json.contains("dtype")) json["dtype"] = name;
  if (json.contains("torch_dtype") || !json.contains("dtype")) json["torch_dtype"] = name;
  return WriteFileAtomic(In(dir, "config.json"), json.dump(2) + "\n");
}

absl::Status WriteWeights(const std::string& dir, const TensorSet& weights) {
  std::vector<std::vector<size_t>> shards(1);
  int64_t total = 0, in_shard = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    if (in_shard > 0 && in_shard + weights.bytes(i) > kMaxShardBytes) shards.emplace_back(), in_shard = 0;
    shards.back().push_back(i);
    in_shard += weights.bytes(i), total += weights.bytes(i);
  }
  const std::map<std::string, std::string> metadata = {{"format", "pt"}};  // transformers insists on it.
  if (shards.size() == 1) return WriteSafetensors(In(dir, kSingleFile), weights, shards[0], metadata);

  Json map = Json::object();
  for (size_t s = 0; s < shards.size(); ++s) {
    const std::string name = absl::StrFormat("model-%05d-of-%05d.safetensors", s + 1, shards.size());
    SLUICE_RETURN_IF_ERROR(WriteSafetensors(In(dir, name), weights, shards[s], metadata));
    for (const size_t i : shards[s]) map[weights.spec(i).name] = name;
  }
  const Json index = {{"metadata", {{"total_size", total}}}, {"weight_map", std::move(map)}};
  return WriteFileAtomic(In(dir, kIndexFile), index.dump(2) + "\n");
}

}  // namespace

absl::StatusOr<ModelDir> ReadModelDir(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, absl::StrCat("model directory ", path));
  if (!S_ISDIR(info.st_mode)) return absl::FailedPreconditionError(absl::StrCat("model directory ", path, ": is no directory"));
  ModelDir dir;
  dir.path = path;
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(In(path, "config.json"), kMaxJsonBytes));
  SLUICE_ASSIGN_OR_RETURN(dir.config, ParseModelConfig(text, In(path, "config.json")));
  SLUICE_ASSIGN_OR_RETURN(dir.stop_ids, ReadStopIds(path, dir.config));
  SLUICE_ASSIGN_OR_RETURN(dir.chat_template, ReadChatTemplate(path));
  if (PathExists(In(path, "tokenizer.json"))) dir.tokenizer_path = In(path, "tokenizer.json");
  if (PathExists(In(path, "tokenizer_config.json"))) dir.tokenizer_config_path = In(path, "tokenizer_config.json");
  return dir;
}

absl::StatusOr<TensorSet> ReadWeights(const ModelDir& dir, DType dtype) {
  SLUICE_ASSIGN_OR_RETURN(const std::vector<Shard> shards, FindShards(dir.path));
  std::vector<SafetensorsFile> files;  // All headers are checked before memory is taken for the weights.
  for (const Shard& shard : shards) {
    SLUICE_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::Open(shard.path));
    SLUICE_RETURN_IF_ERROR(CheckIndex(shard, file));
    files.push_back(std::move(file));
  }
  SLUICE_ASSIGN_OR_RETURN(TensorSet weights, TensorSet::Create(dir.config.Parameters(dtype)));
  std::vector<bool> filled(weights.size());
  for (const SafetensorsFile& file : files) SLUICE_RETURN_IF_ERROR(ReadShard(file, dir.config, &weights, &filled));
  for (size_t i = 0; i < weights.size(); ++i) {
    if (!filled[i]) return absl::InvalidArgumentError(absl::StrCat(dir.path, ": no file holds tensor ", weights.spec(i).name));
  }
  return weights;
}

absl::Status WriteModelFiles(const std::string& dir, const ModelDir& source, const TensorSet& weights) {
  if (weights.size() == 0) return absl::InvalidArgumentError("a model without weights cannot be written");
  SLUICE_RETURN_IF_ERROR(WriteConfig(dir, source, weights.spec(0).dtype));
  for (const char* name : kSideFiles) {
    if (!PathExists(In(source.path, name))) continue;
    SLUICE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(In(source.path, name)));
    SLUICE_RETURN_IF_ERROR(WriteFileAtomic(In(dir, name), bytes));
  }
  return WriteWeights(dir, weights);
}

absl::Status WriteModelDir(const std::string& path, const ModelDir& source, const TensorSet& weights) {
  if (PathExists(path)) return absl::AlreadyExistsError(absl::StrCat(path, " exists already; name another directory or remove it"));
  const std::string temporary = absl::StrCat(path, ".tmp-", ToHex(RandomId16()).substr(0, 8));
  SLUICE_RETURN_IF_ERROR(MakeDirs(temporary));
  absl::Status status = WriteModelFiles(temporary, source, weights);
  if (status.ok() && std::rename(temporary.c_str(), path.c_str()) != 0) {
    status = ErrnoStatus(errno, absl::StrCat("rename ", temporary, " to ", path));
  }
  if (!status.ok()) {
    (void)RemoveTree(temporary);  // The first error is the one to tell.
    return status;
  }
  const size_t slash = path.find_last_of('/', path.find_last_not_of('/'));
  return SyncDir(slash == std::string::npos ? "." : path.substr(0, slash + 1));
}

}  // namespace sluice
