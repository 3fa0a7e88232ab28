#include "common/checkpoint/model_dir.h"

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <optional>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/checkpoint/json.h"
#include "common/checkpoint/safetensors.h"
#include "common/checkpoint/tensor_source.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxJsonBytes = 16 << 20;
constexpr int kMaxJsonDepth = 32;
constexpr char kWeights[] = "model";  // The stem of the names of the weights' files.

// Files that are copied from the source directory, if they exist.
constexpr const char* kSideFiles[] = {"generation_config.json",
                                      "tokenizer.json",
                                      "tokenizer_config.json",
                                      "chat_template.jinja",
                                      "special_tokens_map.json",
                                      "added_tokens.json",
                                      "vocab.json",
                                      "merges.txt",
                                      "tokenizer.model"};

std::string PathIn(const std::string& dir, absl::string_view name) {
  return absl::StrCat(dir, "/", name);
}

// Returns the file's text, or nullopt if there is no such file.
absl::StatusOr<std::optional<std::string>> ReadIfExists(const std::string& path) {
  auto text = ReadFile(path, kMaxJsonBytes);
  if (text.ok()) return std::optional<std::string>(*std::move(text));
  if (absl::IsNotFound(text.status())) return std::optional<std::string>();
  return text.status();
}

// Returns the object in a JSON file; an empty one if there is no such file.
absl::StatusOr<Json> ReadObject(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::optional<std::string> text, ReadIfExists(path));
  if (!text.has_value()) return Json::object();
  SLUICE_ASSIGN_OR_RETURN(Json json, ParseJson(*text, path, kMaxJsonDepth));
  if (!json.is_object())
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a JSON object"));
  return json;
}

// End tokens of generation_config.json, else of config.json.
absl::StatusOr<std::vector<int32_t>> ReadStopIds(const std::string& dir,
                                                 const ModelConfig& config) {
  const std::string path = PathIn(dir, "generation_config.json");
  SLUICE_ASSIGN_OR_RETURN(const Json json, ReadObject(path));
  std::vector<int32_t> ids = config.eos_ids;
  if (json.contains("eos_token_id") && !json["eos_token_id"].is_null()) {
    auto own = ParseTokenIds(json["eos_token_id"]);
    if (!own.ok()) return Annotate(own.status(), absl::StrCat(path, ": eos_token_id"));
    ids = *std::move(own);
  }
  for (const int32_t id : ids) {
    if (id >= config.vocab_size) {
      return absl::InvalidArgumentError(
          absl::StrCat(dir, ": end token ", id, " is not below vocab_size ", config.vocab_size));
    }
  }
  return ids;
}

// tokenizer_config.json holds one template, or a list of {name, template}, of which "default" is
// used.
absl::StatusOr<std::string> ReadChatTemplate(const std::string& dir) {
  SLUICE_ASSIGN_OR_RETURN(std::optional<std::string> own,
                          ReadIfExists(PathIn(dir, "chat_template.jinja")));
  if (own.has_value()) return *std::move(own);
  const std::string path = PathIn(dir, "tokenizer_config.json");
  SLUICE_ASSIGN_OR_RETURN(const Json json, ReadObject(path));
  const auto it = json.find("chat_template");
  if (it == json.end() || it->is_null()) return std::string();
  if (it->is_string()) return it->get<std::string>();
  if (it->is_array()) {
    for (const Json& entry : *it) {
      if (entry.is_object() && entry.value("name", Json()) == "default" &&
          entry.value("template", Json()).is_string()) {
        return entry["template"].get<std::string>();
      }
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      path, ": chat_template is neither a string nor a list with a template named default"));
}

// Tensors that some tools store although the model does not need them.
bool MayBeSkipped(const ModelConfig& config, absl::string_view name) {
  return absl::EndsWith(name, "rotary_emb.inv_freq") ||
         (config.tie_word_embeddings && name == "lm_head.weight");
}

// The place of each parameter of a model, from the headers of its files.
struct WeightFiles {
  struct Parameter {
    TensorSpec spec;  // As stored.
    // Index in `files`.
    size_t file = 0;
    SafetensorsFile::Entry entry;
  };
  std::vector<SafetensorsFile> files;
  std::vector<Parameter> parameters;  // All parameters of the config, sorted by name.
};

// Adds the parameters in one file to `found`. `wanted` holds the parameters of the config. `file`
// is the index of `in`.
absl::Status FindParameters(const ModelConfig& config,
                            const std::map<std::string, TensorSpec>& wanted, size_t file,
                            const SafetensorsFile& in,
                            std::map<std::string, WeightFiles::Parameter>* found) {
  for (const SafetensorsFile::Entry& entry : in.entries()) {
    const TensorSpec& spec = entry.spec;
    const std::string where = absl::StrCat(in.path(), ": tensor ", Printable(spec.name));
    const auto parameter = wanted.find(spec.name);
    if (parameter == wanted.end() && MayBeSkipped(config, spec.name)) continue;
    if (parameter == wanted.end()) {
      return absl::InvalidArgumentError(
          absl::StrCat(where, " is not a parameter of this ", config.architecture));
    }
    if (spec.shape != parameter->second.shape) {
      return absl::InvalidArgumentError(absl::StrCat(
          where, " is ", ShapeText(spec.dtype, spec.shape), ", but config.json asks for ",
          ShapeText(parameter->second.dtype, parameter->second.shape)));
    }
    if (!IsWeightType(spec.dtype)) {
      return absl::InvalidArgumentError(absl::StrCat(where, " is ", DTypeName(spec.dtype),
                                                     ", but weights must be F32, F16 or BF16"));
    }
    if (!found->try_emplace(spec.name, WeightFiles::Parameter{spec, file, entry}).second) {
      return absl::InvalidArgumentError(absl::StrCat(where, " occurs in two files"));
    }
  }
  return absl::OkStatus();
}

// Opens the files of the weights and checks their headers, without reading weights. `dtype` is the
// type that error messages name as the expected one.
absl::StatusOr<WeightFiles> OpenWeights(const ModelDir& dir, DType dtype) {
  // The parameters that the config calls for.
  std::map<std::string, TensorSpec> wanted;
  for (TensorSpec& spec : dir.config.Parameters(dtype)) {
    std::string name = spec.name;
    wanted.emplace(std::move(name), std::move(spec));
  }

  WeightFiles weights;
  std::map<std::string, WeightFiles::Parameter> found;
  SLUICE_ASSIGN_OR_RETURN(weights.files, OpenShards(dir.path, kWeights));
  for (size_t i = 0; i < weights.files.size(); ++i)
    SLUICE_RETURN_IF_ERROR(FindParameters(dir.config, wanted, i, weights.files[i], &found));

  // Every parameter must have been found.
  for (const auto& [name, spec] : wanted) {
    const auto it = found.find(name);
    if (it == found.end()) {
      return absl::InvalidArgumentError(absl::StrCat(dir.path, ": no file holds tensor ", name));
    }
    weights.parameters.push_back(std::move(it->second));
  }
  return weights;
}

// Reads one parameter and converts it to `dtype`. INVALID_ARGUMENT: an element is not finite in
// `dtype`.
absl::Status ReadParameter(const WeightFiles& weights, const WeightFiles::Parameter& parameter,
                           DType dtype, std::vector<std::byte>* scratch, std::byte* to) {
  const SafetensorsFile& file = weights.files[parameter.file];
  const std::string where = absl::StrCat(file.path(), ": tensor ", Printable(parameter.spec.name));
  const size_t bytes = static_cast<size_t>(parameter.entry.bytes);
  SLUICE_ASSIGN_OR_RETURN(const int64_t elements, NumElements(parameter.spec.shape));

  if (parameter.spec.dtype == dtype) {
    SLUICE_RETURN_IF_ERROR(file.Read(parameter.entry, {to, bytes}));
  } else {
    scratch->resize(bytes);
    SLUICE_RETURN_IF_ERROR(file.Read(parameter.entry, absl::MakeSpan(*scratch)));
    SLUICE_RETURN_IF_ERROR(
        ConvertElements(parameter.spec.dtype, scratch->data(), dtype, to, elements));
  }
  if (const int64_t bad = FirstNonFinite(dtype, to, elements); bad >= 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": element ", bad, " is infinite or NaN as ", DTypeName(dtype)));
  }
  return absl::OkStatus();
}

// Returns transformers' name of a weight type.
absl::StatusOr<std::string> TorchName(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "float32";
    case DType::kF16: return "float16";
    case DType::kBF16: return "bfloat16";
    default:
      return absl::InvalidArgumentError(
          absl::StrCat("weights of type ", DTypeName(dtype), " cannot be written as a model"));
  }
}

// Returns the type that most elements have.
DType CommonType(absl::Span<const TensorSpec> specs) {
  std::map<DType, int64_t> elements;
  for (const TensorSpec& spec : specs) elements[spec.dtype] += NumElements(spec.shape).value_or(0);
  return std::max_element(elements.begin(), elements.end(),
                          [](const auto& a, const auto& b) { return a.second < b.second; })
      ->first;
}

// Writes a small file and adds its digest to `written`.
absl::Status WriteWithDigest(const std::string& dir, const std::string& name,
                             absl::string_view bytes, WrittenFiles* written) {
  return WriteFileAtomic(PathIn(dir, name), absl::MakeConstSpan(&bytes, 1), &(*written)[name]);
}

absl::Status WriteConfig(const std::string& dir, const ModelDir& source, DType dtype,
                         WrittenFiles* written) {
  SLUICE_ASSIGN_OR_RETURN(Json json, ReadObject(PathIn(source.path, "config.json")));
  SLUICE_ASSIGN_OR_RETURN(const std::string name, TorchName(dtype));
  if (json.contains("dtype")) json["dtype"] = name;
  if (json.contains("torch_dtype") || !json.contains("dtype")) json["torch_dtype"] = name;
  return WriteWithDigest(dir, "config.json", json.dump(2) + "\n", written);
}

}  // namespace

absl::StatusOr<ModelDir> ReadModelDir(const std::string& path) {
  struct stat info;
  if (stat(path.c_str(), &info) != 0)
    return ErrnoStatus(errno, absl::StrCat("model directory ", path));
  if (!S_ISDIR(info.st_mode))
    return absl::FailedPreconditionError(
        absl::StrCat("model directory ", path, ": is not a directory"));
  ModelDir dir;
  dir.path = path;
  SLUICE_ASSIGN_OR_RETURN(const std::string text,
                          ReadFile(PathIn(path, "config.json"), kMaxJsonBytes));
  SLUICE_ASSIGN_OR_RETURN(dir.config, ParseModelConfig(text, PathIn(path, "config.json")));
  SLUICE_ASSIGN_OR_RETURN(dir.stop_ids, ReadStopIds(path, dir.config));
  SLUICE_ASSIGN_OR_RETURN(dir.chat_template, ReadChatTemplate(path));
  if (PathExists(PathIn(path, "tokenizer.json")))
    dir.tokenizer_path = PathIn(path, "tokenizer.json");
  if (PathExists(PathIn(path, "tokenizer_config.json")))
    dir.tokenizer_config_path = PathIn(path, "tokenizer_config.json");
  return dir;
}

absl::StatusOr<TensorSet> ReadWeights(const ModelDir& dir, DType dtype) {
  // All headers are checked before memory is allocated for the weights.
  SLUICE_ASSIGN_OR_RETURN(const WeightFiles files, OpenWeights(dir, dtype));
  SLUICE_ASSIGN_OR_RETURN(TensorSet weights, TensorSet::Create(dir.config.Parameters(dtype)));
  std::vector<std::byte> scratch;
  for (const WeightFiles::Parameter& parameter : files.parameters) {
    const int64_t i = weights.Find(parameter.spec.name);
    SLUICE_RETURN_IF_ERROR(ReadParameter(files, parameter, dtype, &scratch, weights.data(i)));
  }
  return weights;
}

absl::StatusOr<std::vector<TensorSpec>> ReadWeightSpecs(const ModelDir& dir) {
  SLUICE_ASSIGN_OR_RETURN(const WeightFiles files, OpenWeights(dir, dir.config.dtype));
  std::vector<TensorSpec> specs;
  for (const WeightFiles::Parameter& parameter : files.parameters) specs.push_back(parameter.spec);
  return specs;
}

absl::Status ReadEachWeight(
    const ModelDir& dir,
    const std::function<void(const TensorSpec& spec, const std::byte* data)>& take) {
  SLUICE_ASSIGN_OR_RETURN(const WeightFiles files, OpenWeights(dir, dir.config.dtype));
  std::vector<std::byte> scratch, data;
  for (const WeightFiles::Parameter& parameter : files.parameters) {
    data.resize(parameter.entry.bytes);
    SLUICE_RETURN_IF_ERROR(
        ReadParameter(files, parameter, parameter.spec.dtype, &scratch, data.data()));
    take(parameter.spec, data.data());
  }
  return absl::OkStatus();
}

absl::Status WriteModelFiles(const std::string& dir, const ModelDir& source,
                             const TensorSource& weights, WrittenFiles* written,
                             int64_t max_shard_bytes) {
  WrittenFiles unused;
  if (written == nullptr) written = &unused;
  if (weights.specs().empty())
    return absl::InvalidArgumentError("a model without weights cannot be written");
  SLUICE_RETURN_IF_ERROR(WriteConfig(dir, source, CommonType(weights.specs()), written));
  for (const char* name : kSideFiles) {
    if (!PathExists(PathIn(source.path, name))) continue;
    SLUICE_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(PathIn(source.path, name)));
    SLUICE_RETURN_IF_ERROR(WriteWithDigest(dir, name, bytes, written));
  }
  // transformers refuses files without this entry.
  return WriteShards(dir, kWeights, weights, {}, {{"format", "pt"}}, max_shard_bytes, written);
}

absl::Status WriteModelDir(const std::string& path, const ModelDir& source,
                           const TensorSet& weights) {
  return WriteDirAtomic(path, [&](const std::string& temporary) {
    return WriteModelFiles(temporary, source, SetSource(&weights));
  });
}

}  // namespace sluice
