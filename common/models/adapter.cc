#include "common/models/adapter.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/bf16.h"
#include "common/base/digest.h"
#include "common/base/file.h"
#include "common/base/json_excerpt.h"
#include "common/base/status.h"
#include "common/checkpoint/json.h"
#include "common/checkpoint/layer_matrices.h"
#include "common/checkpoint/safetensors.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxConfigDepth = 16;
static_assert(std::size(kLayerMatrices) == Adapter::kTargets);  // In the order of Target.
constexpr int kLanes = 16;  // Strided partial sums of each element of A x.

// Keys that do not change the computation. Any other key is either read in ReadConfig(), or must
// have a value that turns its feature off (IsTurnedOff).
constexpr const char* kIgnoredKeys[] = {"auto_mapping",     "base_model_name_or_path",
                                        "inference_mode",   "lora_dropout",
                                        "megatron_core",    "peft_version",
                                        "revision",         "task_type",
                                        "qalora_group_size"};

// The way around every setting that this build does not have.
constexpr char kMergeHint[] =
    "merge the adapter into its model (PEFT's merge_and_unload) and give that directory instead";

// Whether the value of a key turns its feature off: it is null, false or empty.
bool IsTurnedOff(const Json& value) {
  return value.is_null() || value == false ||
         ((value.is_object() || value.is_array() || value.is_string()) && value.empty());
}

std::pair<int64_t, int64_t> InputsAndOutputs(const ModelConfig& config, int target) {
  const int64_t h = config.hidden_size, q = config.num_heads * config.head_dim,
                kv = config.num_kv_heads * config.head_dim;
  switch (target) {
    case Adapter::kQ: return {h, q};
    case Adapter::kK:
    case Adapter::kV: return {h, kv};
    case Adapter::kO: return {q, h};
    case Adapter::kDown: return {config.intermediate_size, h};
    default: return {h, config.intermediate_size};
  }
}

std::string TensorName(size_t layer, int target, char side) {
  return absl::StrCat("base_model.model.model.layers.", layer,
                      target < Adapter::kGate ? ".self_attn." : ".mlp.", kLayerMatrices[target],
                      ".lora_", std::string(1, side), ".weight");
}

absl::StatusOr<std::vector<float>> ReadFloats(const SafetensorsFile& file,
                                              const SafetensorsFile::Entry& entry) {
  std::vector<std::byte> bytes(static_cast<size_t>(entry.bytes));
  SLUICE_RETURN_IF_ERROR(file.Read(entry, absl::MakeSpan(bytes)));
  std::vector<float> numbers(bytes.size() / DTypeBytes(entry.spec.dtype));
  SLUICE_RETURN_IF_ERROR(ConvertElements(entry.spec.dtype, bytes.data(), DType::kF32,
                                         numbers.data(), static_cast<int64_t>(numbers.size())));
  const auto bad =
      std::find_if(numbers.begin(), numbers.end(), [](float x) { return !std::isfinite(x); });
  if (bad != numbers.end())
    return absl::InvalidArgumentError(
        absl::StrCat(entry.spec.name, "[", bad - numbers.begin(), "] is ", *bad, ", not finite"));
  return numbers;
}

float Widen(float x) { return x; }
float Widen(uint16_t x) { return FloatFromBf16(x); }

// low [rank] = A [rank, in] times x [in].
template <typename T>
void MultiplyByA(const float* a, const T* x, int64_t rank, int64_t in, float* low) {
  for (int64_t j = 0; j < rank; ++j) {
    float lanes[kLanes] = {};
    int64_t k = 0;
    for (; k + kLanes <= in; k += kLanes) {
      for (int l = 0; l < kLanes; ++l) lanes[l] += a[j * in + k + l] * Widen(x[k + l]);
    }
    for (int l = 0; k + l < in; ++l) lanes[l] += a[j * in + k + l] * Widen(x[k + l]);
    float sum = 0;
    for (const float lane : lanes) sum += lane;
    low[j] = sum;
  }
}

// y [out] += B low. `b` is the transpose of B: [rank, out].
void AddProductWithB(const float* b, const float* low, int64_t rank, int64_t out, float* y) {
  for (int64_t j = 0; j < rank; ++j) {
    for (int64_t n = 0; n < out; ++n) y[n] += low[j] * b[j * out + n];
  }
}

}  // namespace

absl::Status Adapter::ReadConfig(const std::string& file, std::array<bool, kTargets>* targets) {
  SLUICE_ASSIGN_OR_RETURN(const std::string text, ReadFile(file, kMaxConfigBytes));
  SLUICE_ASSIGN_OR_RETURN(const Json json, ParseJson(text, file, kMaxConfigDepth));
  if (!json.is_object())
    return absl::InvalidArgumentError(absl::StrCat(file, ": the file is not a JSON object"));
  const auto wrong = [&](absl::string_view key, const Json& value, absl::string_view wanted) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": ", Printable(key), " is ", JsonExcerpt(value), "; wanted: ", wanted));
  };

  const std::string whole_modules = absl::StrCat(
      "give a list of ", absl::StrJoin(kLayerMatrices, ", "),
      " as target_modules if the adapter changes these modules in every layer; else ", kMergeHint);

  double alpha = 0;
  bool rank_stabilized = false;
  for (const auto& [key, value] : json.items()) {
    const auto not_built = [&, &key = key, &value = value](absl::string_view have) {
      return absl::UnimplementedError(absl::StrCat(
          file, ": ", Printable(key), " ", JsonExcerpt(value), " is not in this build; ", have));
    };
    if (key == "peft_type") {
      if (value != "LORA") return not_built("it has LORA");
    } else if (key == "r") {
      if (!value.is_number_integer() || value.get<int64_t>() < 1 || value.get<int64_t>() > kMaxRank)
        return wrong(key, value, absl::StrCat("1 to ", kMaxRank));
      rank_ = value.get<int64_t>();
    } else if (key == "lora_alpha") {
      if (!value.is_number() || value == 0 || !std::isfinite(value.get<double>()))
        return wrong(key, value, "a number other than 0");
      alpha = value.get<double>();
    } else if (key == "use_rslora") {
      if (!value.is_boolean()) return wrong(key, value, "true or false");
      rank_stabilized = value.get<bool>();
    } else if (key == "target_modules") {
      if (!value.is_array() || value.empty()) return not_built(whole_modules);
      for (const Json& name : value) {
        const auto at =
            std::find_if(std::begin(kLayerMatrices), std::end(kLayerMatrices),
                         [&](absl::string_view known) { return name == std::string(known); });
        if (at == std::end(kLayerMatrices))
          return not_built(absl::StrCat(JsonExcerpt(name), " is none of ",
                                        absl::StrJoin(kLayerMatrices, ", "), "; ", kMergeHint));
        (*targets)[static_cast<size_t>(at - std::begin(kLayerMatrices))] = true;
      }
    } else if (key == "bias") {
      if (value != "none") return not_built(absl::StrCat("it has only \"none\"; ", kMergeHint));
    } else if (key == "init_lora_weights") {  // Other kinds also change the base model.
      if (!value.is_boolean() && value != "gaussian" && value != "orthogonal")
        return not_built(absl::StrCat("it has true, false, gaussian and orthogonal; ", kMergeHint));
    } else if (std::find(std::begin(kIgnoredKeys), std::end(kIgnoredKeys), key) ==
                   std::end(kIgnoredKeys) &&
               !IsTurnedOff(value)) {
      return not_built(key == "exclude_modules" ? whole_modules : kMergeHint);
    }
  }

  for (const char* key : {"peft_type", "r", "lora_alpha", "target_modules"}) {
    if (!json.contains(key))
      return absl::InvalidArgumentError(absl::StrCat(file, ": ", key, " is missing"));
  }

  const double scale = rank_stabilized ? alpha / std::sqrt(static_cast<double>(rank_))
                                       : alpha / static_cast<double>(rank_);
  scale_ = static_cast<float>(scale);
  if (!std::isfinite(scale_) || scale_ == 0) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": lora_alpha ", alpha, " with r ", rank_,
                                                   " makes a scale of ", scale,
                                                   ", which no fp32 number holds"));
  }
  return absl::OkStatus();
}

absl::Status Adapter::ReadTensors(const std::string& path,
                                  const std::array<bool, kTargets>& targets) {
  SLUICE_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  std::map<std::string, const SafetensorsFile::Entry*> entries;
  for (const SafetensorsFile::Entry& entry : file.entries()) entries[entry.spec.name] = &entry;

  // The digest covers the tensors in the order in which they are read below.
  Sha256Stream digest;
  digest.Update(absl::StrCat(rank_, " ", std::bit_cast<uint32_t>(scale_)));

  // Reads a tensor, and removes it from `entries`.
  const auto read_tensor = [&](const std::string& name,
                               std::vector<int64_t> shape) -> absl::StatusOr<std::vector<float>> {
    const auto it = entries.find(name);
    if (it == entries.end())
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", name,
          " is missing; every layer needs lora_A and lora_B of each of target_modules"));
    const SafetensorsFile::Entry& entry = *it->second;
    entries.erase(it);
    const DType dtype = entry.spec.dtype;
    if (entry.spec.shape != shape ||
        (dtype != DType::kF32 && dtype != DType::kBF16 && dtype != DType::kF16)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", name, " is ", ShapeText(dtype, entry.spec.shape), "; this model and r need ",
          ShapeText(DType::kF32, shape), " (or BF16, F16)"));
    }
    SLUICE_ASSIGN_OR_RETURN(std::vector<float> numbers, ReadFloats(file, entry));
    digest.Update(name);
    digest.Update({reinterpret_cast<const char*>(numbers.data()), numbers.size() * sizeof(float)});
    return numbers;
  };

  for (size_t layer = 0; layer < layers_.size(); ++layer) {
    for (int target = 0; target < kTargets; ++target) {
      if (!targets[static_cast<size_t>(target)]) continue;
      Matrix& matrix = layers_[layer][static_cast<size_t>(target)];
      SLUICE_ASSIGN_OR_RETURN(matrix.a,
                              read_tensor(TensorName(layer, target, 'A'), {rank_, matrix.in}));
      SLUICE_ASSIGN_OR_RETURN(const std::vector<float> b,
                              read_tensor(TensorName(layer, target, 'B'), {matrix.out, rank_}));
      matrix.b.resize(b.size());
      for (int64_t n = 0; n < matrix.out; ++n) {
        for (int64_t j = 0; j < rank_; ++j) {
          const float scaled = scale_ * b[static_cast<size_t>(n * rank_ + j)];
          if (!std::isfinite(scaled)) {
            return absl::InvalidArgumentError(
                absl::StrCat("tensor ", TensorName(layer, target, 'B'), "[", n * rank_ + j, "] is ",
                             b[static_cast<size_t>(n * rank_ + j)],
                             ", and its product with the scale ", scale_, " is not finite"));
          }
          matrix.b[static_cast<size_t>(j * matrix.out + n)] = scaled;
        }
      }
    }
  }

  // What is left in `entries` was not asked for.
  if (!entries.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "tensor ", Printable(entries.begin()->first), " does not belong to target_modules in the ",
        layers_.size(), " layers of this model; remove it, or use the model that was adapted"));
  }
  digest_ = digest.Finish();
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const Adapter>> Adapter::Read(const std::string& dir,
                                                             const ModelConfig& config) {
  std::shared_ptr<Adapter> adapter(new Adapter());
  adapter->path_ = dir;
  adapter->layers_.resize(static_cast<size_t>(config.num_layers));
  for (auto& layer : adapter->layers_) {
    for (int target = 0; target < kTargets; ++target)
      std::tie(layer[static_cast<size_t>(target)].in, layer[static_cast<size_t>(target)].out) =
          InputsAndOutputs(config, target);
  }
  std::array<bool, kTargets> targets{};
  SLUICE_RETURN_IF_ERROR(adapter->ReadConfig(dir + "/adapter_config.json", &targets));
  if (config.num_experts > 0 && (targets[kGate] || targets[kUp] || targets[kDown])) {
    return absl::UnimplementedError(
        absl::StrCat(dir,
                     ": adapters of experts are not in this build; leave gate_proj, up_proj and "
                     "down_proj out of target_modules"));
  }
  const std::string file = dir + "/adapter_model.safetensors";
  SLUICE_RETURN_IF_ERROR(Annotate(adapter->ReadTensors(file, targets), file));
  return std::shared_ptr<const Adapter>(std::move(adapter));
}

bool Adapter::Fits(const ModelConfig& config) const {
  if (static_cast<int64_t>(layers_.size()) != config.num_layers) return false;
  for (int target = 0; target < kTargets; ++target) {
    const Matrix& matrix = layers_[0][static_cast<size_t>(target)];
    if (std::pair(matrix.in, matrix.out) != InputsAndOutputs(config, target)) return false;
  }
  return true;
}

template <typename T>
void Adapter::Add(int64_t layer, Target target, const T* x, float* y) const {
  const Matrix& matrix = layers_[static_cast<size_t>(layer)][target];
  if (matrix.a.empty()) return;
  float low[kMaxRank];
  MultiplyByA(matrix.a.data(), x, rank_, matrix.in, low);
  AddProductWithB(matrix.b.data(), low, rank_, matrix.out, y);
}
template void Adapter::Add(int64_t, Target, const float*, float*) const;
template void Adapter::Add(int64_t, Target, const uint16_t*, float*) const;

}  // namespace sluice
