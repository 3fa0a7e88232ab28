#include "common/checkpoint/model_config.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/json_excerpt.h"
#include "common/base/nearest.h"
#include "common/base/status.h"
#include "common/checkpoint/json.h"
#include "common/checkpoint/registry.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int64_t kMaxConfigBytes = 1 << 20;
constexpr int kMaxConfigDepth = 32;
// Limit for all layers together. It is three times the number in the largest models of today.
constexpr int64_t kMaxExperts = 1 << 16;
// Keeps the bytes of every product of two dimensions far below 2^62.
constexpr int64_t kMaxDimension = int64_t{1} << 24;

// Keys without effect on what Sluice computes. transformers writes them to describe how a model was
// loaded, its outputs, labels and default sampling; other tools leave some too. Sampling parameters
// come from the job or the request instead.
constexpr const char* kOfNoEffect[] = {"_attn_implementation",
                                       "_attn_implementation_autoset",
                                       "_name_or_path",
                                       "attn_implementation",
                                       "begin_suppress_tokens",
                                       "bos_token_id",
                                       "chunk_size_feed_forward",
                                       "decoder_start_token_id",
                                       "diversity_penalty",
                                       "do_sample",
                                       "early_stopping",
                                       "encoder_no_repeat_ngram_size",
                                       "finetuning_task",
                                       "id2label",
                                       "is_llama_config",
                                       "label2id",
                                       "length_penalty",
                                       "max_length",
                                       "min_length",
                                       "model_max_length",
                                       "no_repeat_ngram_size",
                                       "num_beam_groups",
                                       "num_beams",
                                       "num_return_sequences",
                                       "output_attentions",
                                       "output_hidden_states",
                                       "output_scores",
                                       "pad_token_id",
                                       "prefix",
                                       "problem_type",
                                       "remove_invalid_values",
                                       "repetition_penalty",
                                       "return_dict",
                                       "return_dict_in_generate",
                                       "sep_token_id",
                                       "task_specific_params",
                                       "temperature",
                                       "tokenizer_class",
                                       "top_k",
                                       "top_p",
                                       "torchscript",
                                       "transformers.js_config",
                                       "transformers_version",
                                       "typical_p",
                                       "unsloth_fixed",
                                       "unsloth_version",
                                       "use_cache"};

// Takes keys out of a JSON object one by one, and can then report the keys that nobody took. A null
// value counts as absent.
class Fields {
 public:
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  // Returns the value of `key`, or null if it is absent. Either way the key counts as known.
  const Json* TakeKey(absl::string_view key) {
    known_.push_back(key);
    const auto it = object_.find(std::string(key));
    return it == object_.end() || it->is_null() ? nullptr : &*it;
  }

  // Whether the key is present, even with the value null.
  bool Has(absl::string_view key) const { return object_.contains(std::string(key)); }

  // These set *out if the key is present, and leave it unchanged otherwise.
  absl::Status ReadInteger(absl::string_view key, int64_t low, int64_t high, int64_t* out) {
    const Json* value = TakeKey(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_number_integer() ||
        (value->is_number_unsigned() &&
         value->get<uint64_t>() > static_cast<uint64_t>(INT64_MAX))) {
      return ValueError(key, *value, "an integer");
    }
    if (value->get<int64_t>() < low || value->get<int64_t>() > high) {
      return ValueError(key, *value, absl::StrCat("an integer in [", low, ", ", high, "]"));
    }
    *out = value->get<int64_t>();
    return absl::OkStatus();
  }

  absl::Status ReadRequired(absl::string_view key, int64_t high, int64_t* out) {
    const auto it = object_.find(std::string(key));
    if (it == object_.end() || it->is_null())
      return absl::InvalidArgumentError(absl::StrCat(path_, ": has no ", key));
    return ReadInteger(key, 1, high, out);
  }

  absl::Status ReadNumber(absl::string_view key, double low, double high, double* out) {
    const Json* value = TakeKey(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_number() || !(value->get<double>() >= low && value->get<double>() <= high)) {
      return ValueError(key, *value, absl::StrCat("a number in [", low, ", ", high, "]"));
    }
    *out = value->get<double>();
    return absl::OkStatus();
  }

  absl::Status ReadBoolean(absl::string_view key, bool* out) {
    const Json* value = TakeKey(key);
    if (value == nullptr) return absl::OkStatus();
    if (!value->is_boolean()) return ValueError(key, *value, "true or false");
    *out = value->get<bool>();
    return absl::OkStatus();
  }

  // Accepts `key` only if it is absent or has one of the values `allowed`. Another value asks for a
  // feature that Sluice does not have (UNIMPLEMENTED).
  absl::Status AcceptOnly(absl::string_view key, std::initializer_list<Json> allowed) {
    const Json* value = TakeKey(key);
    if (value == nullptr || std::find(allowed.begin(), allowed.end(), *value) != allowed.end())
      return absl::OkStatus();
    return UnsupportedError(key, *value, JsonExcerpt(*allowed.begin()));
  }

  absl::Status UnsupportedError(absl::string_view key, const Json& value,
                                absl::string_view supported) const {
    return absl::UnimplementedError(absl::StrCat(path_, ": ", key, " ", JsonExcerpt(value),
                                                 " is not supported, only ", supported));
  }

  absl::Status ValueError(absl::string_view key, const Json& value,
                          absl::string_view wanted) const {
    return absl::InvalidArgumentError(
        absl::StrCat(path_, ": ", key, " is ", JsonExcerpt(value), "; it must be ", wanted));
  }

  // Returns an error for the first key that nobody took, unless its value is null or false, which
  // turns a feature off.
  absl::Status CheckNoUnknownKeys() const {
    for (const auto& [key, value] : object_.items()) {
      if (value.is_null() || value == Json(false) ||
          std::find(known_.begin(), known_.end(), key) != known_.end())
        continue;
      const absl::string_view near = NearestMatch(key, known_);
      return absl::InvalidArgumentError(
          absl::StrCat(path_, ": unknown key ", Printable(key), " (its value: ", JsonExcerpt(value),
                       ")", near.empty() ? "" : absl::StrCat("; did you mean ", near, "?")));
    }
    return absl::OkStatus();
  }

 private:
  const Json& object_;
  const std::string path_;
  std::vector<absl::string_view> known_;
};

absl::StatusOr<const Architecture*> ReadArchitecture(Fields& fields, const std::string& path) {
  const Json* names = fields.TakeKey("architectures");
  if (names == nullptr || !names->is_array() || names->size() != 1 || !names->front().is_string()) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": architectures is ", names == nullptr ? "absent" : JsonExcerpt(*names),
                     "; it must be a list of one name"));
  }

  const Architecture* row = FindArchitecture(names->front().get<std::string>());
  if (row == nullptr) {
    return absl::UnimplementedError(
        absl::StrCat(path, ": architecture ", JsonExcerpt(names->front()),
                     " is not supported; Sluice supports ", ArchitectureNames()));
  }
  SLUICE_RETURN_IF_ERROR(fields.AcceptOnly("model_type", {std::string(row->model_type)}));
  return row;
}

// Reads the rotary embedding. The newer key `rope_parameters` includes theta; the older form is
// `rope_theta` beside `rope_scaling`.
absl::Status ReadRope(Fields& fields, const std::string& path, RopeConfig* rope) {
  // theta may be in either place.
  SLUICE_RETURN_IF_ERROR(fields.ReadNumber("rope_theta", 1, 1e12, &rope->theta));
  const Json* scaling = fields.TakeKey("rope_scaling");
  const Json* parameters = fields.TakeKey("rope_parameters");
  if (scaling != nullptr && parameters != nullptr && *scaling != *parameters) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": rope_scaling and rope_parameters are both set, and differ"));
  }

  const absl::string_view name = parameters != nullptr ? "rope_parameters" : "rope_scaling";
  const Json* section = parameters != nullptr ? parameters : scaling;
  if (section == nullptr) return absl::OkStatus();
  if (!section->is_object()) return fields.ValueError(name, *section, "an object");

  Fields inner(*section, absl::StrCat(path, ": ", name));
  SLUICE_RETURN_IF_ERROR(inner.ReadNumber("rope_theta", 1, 1e12, &rope->theta));
  const Json* type = inner.TakeKey("rope_type");
  if (const Json* old = inner.TakeKey("type"); type == nullptr) type = old;
  if (type != nullptr && !type->is_string())
    return inner.ValueError("rope_type", *type, "a string");
  const std::string kind = type == nullptr ? "default" : type->get<std::string>();
  // Each type reads its own parameters.
  if (kind == "llama3") {
    rope->type = RopeConfig::Type::kLlama3;
    SLUICE_RETURN_IF_ERROR(inner.ReadNumber("factor", 1, 1e6, &rope->factor));
    SLUICE_RETURN_IF_ERROR(inner.ReadNumber("low_freq_factor", 1e-6, 1e6, &rope->low_freq_factor));
    SLUICE_RETURN_IF_ERROR(
        inner.ReadNumber("high_freq_factor", 1e-6, 1e6, &rope->high_freq_factor));
    SLUICE_RETURN_IF_ERROR(inner.ReadRequired("original_max_position_embeddings", kMaxDimension,
                                              &rope->original_context));
    if (rope->high_freq_factor <= rope->low_freq_factor) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": high_freq_factor ", rope->high_freq_factor,
                       " is not above low_freq_factor ", rope->low_freq_factor));
    }
  } else if (kind == "linear") {
    rope->type = RopeConfig::Type::kLinear;
    SLUICE_RETURN_IF_ERROR(inner.ReadNumber("factor", 1, 1e6, &rope->factor));
  } else if (kind != "default") {
    return absl::UnimplementedError(
        absl::StrCat(path, ": rope type \"", Printable(kind),
                     "\" is not supported; Sluice supports default, linear and llama3"));
  }
  return inner.CheckNoUnknownKeys();
}

absl::Status ReadShape(Fields& fields, const Architecture& arch, const std::string& path,
                       ModelConfig* config) {
  SLUICE_RETURN_IF_ERROR(fields.ReadRequired("vocab_size", kMaxDimension, &config->vocab_size));
  SLUICE_RETURN_IF_ERROR(fields.ReadRequired("hidden_size", kMaxDimension, &config->hidden_size));
  SLUICE_RETURN_IF_ERROR(
      fields.ReadRequired("intermediate_size", kMaxDimension, &config->intermediate_size));
  SLUICE_RETURN_IF_ERROR(fields.ReadRequired("num_hidden_layers", 4096, &config->num_layers));
  SLUICE_RETURN_IF_ERROR(fields.ReadRequired("num_attention_heads", 65536, &config->num_heads));
  SLUICE_RETURN_IF_ERROR(
      fields.ReadRequired("max_position_embeddings", kMaxDimension, &config->max_context));

  config->num_kv_heads = arch.default_kv_heads != 0 ? arch.default_kv_heads : config->num_heads;
  SLUICE_RETURN_IF_ERROR(
      fields.ReadInteger("num_key_value_heads", 1, 65536, &config->num_kv_heads));
  config->head_dim =
      arch.default_head_dim != 0 ? arch.default_head_dim : config->hidden_size / config->num_heads;
  SLUICE_RETURN_IF_ERROR(fields.ReadInteger("head_dim", 1, 4096, &config->head_dim));

  if (config->num_heads % config->num_kv_heads != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": num_attention_heads ", config->num_heads,
                     " is not a multiple of num_key_value_heads ", config->num_kv_heads));
  }
  if (config->head_dim < 2 || config->head_dim % 2 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": head_dim ", config->head_dim,
                     " is not a positive even number; rotary positions need pairs"));
  }
  return absl::OkStatus();
}

// Reads the keys of biases and of the attention window, accepts the only supported value of other
// keys, and skips keys that have no effect.
absl::Status ReadRemainingKeys(Fields& fields, const Architecture& arch, ModelConfig* config) {
  SLUICE_RETURN_IF_ERROR(fields.AcceptOnly("hidden_act", {"silu", "swish"}));
  if (arch.attention_bias_key) {
    SLUICE_RETURN_IF_ERROR(fields.ReadBoolean("attention_bias", &config->o_bias));
    config->qkv_bias |= config->o_bias;
  } else {
    SLUICE_RETURN_IF_ERROR(fields.AcceptOnly("attention_bias", {arch.qkv_bias, false}));
  }

  SLUICE_RETURN_IF_ERROR(fields.AcceptOnly("attention_dropout", {0}));
  SLUICE_RETURN_IF_ERROR(fields.AcceptOnly("use_sliding_window", {false}));
  SLUICE_RETURN_IF_ERROR(fields.AcceptOnly("pretraining_tp", {1}));
  SLUICE_RETURN_IF_ERROR(fields.AcceptOnly("quantization_config", {nullptr}));
  if (arch.mlp_bias_key) SLUICE_RETURN_IF_ERROR(fields.ReadBoolean("mlp_bias", &config->mlp_bias));
  if (const Json* types = fields.TakeKey("layer_types"); types != nullptr) {
    const auto full = [](const Json& type) { return type == "full_attention"; };
    if (!types->is_array() || !std::all_of(types->begin(), types->end(), full))
      return fields.UnsupportedError("layer_types", *types, "full_attention");
  }

  SLUICE_RETURN_IF_ERROR(fields.AcceptOnly("pruned_heads", {Json::object()}));
  for (const char* key : kOfNoEffect) fields.TakeKey(key);
  if (arch.default_window != 0) {
    // A null value means "no window", an absent key the default window.
    config->sliding_window = fields.Has("sliding_window") ? 0 : arch.default_window;
    SLUICE_RETURN_IF_ERROR(
        fields.ReadInteger("sliding_window", 1, kMaxDimension, &config->sliding_window));
  }

  // Without use_sliding_window these have no effect.
  if (absl::StartsWith(arch.model_type, "qwen")) {
    fields.TakeKey("sliding_window");
    fields.TakeKey("max_window_layers");
  }
  if (fields.TakeKey("auto_map") != nullptr) config->ignored.push_back("auto_map");
  return absl::OkStatus();
}

// Reads the keys of a mixture of experts. The defaults are those of transformers.
absl::Status ReadExperts(Fields& fields, const std::string& path, ModelConfig* config) {
  config->num_experts = 128, config->experts_per_token = 8, config->expert_size = 768;
  int64_t experts = 0, local = 0;  // Two names of one number; transformers 5 writes the second.
  SLUICE_RETURN_IF_ERROR(fields.ReadInteger("num_experts", 1, UINT16_MAX, &experts));
  SLUICE_RETURN_IF_ERROR(fields.ReadInteger("num_local_experts", 1, UINT16_MAX, &local));
  if (experts != 0 && local != 0 && experts != local) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": num_experts ", experts,
                                                   " and num_local_experts ", local,
                                                   " are two names of one number, and differ"));
  }

  if (experts != 0 || local != 0) config->num_experts = std::max(experts, local);
  SLUICE_RETURN_IF_ERROR(
      fields.ReadInteger("num_experts_per_tok", 1, UINT16_MAX, &config->experts_per_token));
  SLUICE_RETURN_IF_ERROR(
      fields.ReadInteger("moe_intermediate_size", 1, kMaxDimension, &config->expert_size));
  SLUICE_RETURN_IF_ERROR(fields.ReadBoolean("norm_topk_prob", &config->norm_topk_prob));
  SLUICE_RETURN_IF_ERROR(fields.AcceptOnly("decoder_sparse_step", {1}));
  SLUICE_RETURN_IF_ERROR(fields.AcceptOnly("mlp_only_layers", {Json::array()}));
  SLUICE_RETURN_IF_ERROR(fields.AcceptOnly("output_router_logits", {false}));
  fields.TakeKey("router_aux_loss_coef");  // Concerns a loss that is off.
  if (config->experts_per_token > config->num_experts) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": num_experts_per_tok ",
                                                   config->experts_per_token,
                                                   " is above num_experts ", config->num_experts));
  }

  // Each expert has parameters of its own, so this bounds the length of Parameters().
  if (config->num_layers * config->num_experts > kMaxExperts) {
    return absl::InvalidArgumentError(absl::StrCat(path, ": ", config->num_layers, " layers of ",
                                                   config->num_experts, " experts are more than ",
                                                   kMaxExperts, " in all"));
  }
  return absl::OkStatus();
}

absl::Status ReadDType(Fields& fields, DType* out) {
  const Json* value = fields.TakeKey("dtype");
  if (const Json* old = fields.TakeKey("torch_dtype"); value == nullptr) value = old;
  if (value == nullptr) return absl::OkStatus();
  const absl::StatusOr<DType> dtype =
      DTypeFromTorchName(value->is_string() ? value->get<std::string>() : "");
  if (!dtype.ok()) return fields.ValueError("dtype", *value, "float32, float16 or bfloat16");
  *out = *dtype;
  return absl::OkStatus();
}

absl::Status ReadEndTokens(Fields& fields, std::vector<int32_t>* out) {
  const Json* value = fields.TakeKey("eos_token_id");
  if (value == nullptr) return absl::OkStatus();
  auto ids = ParseTokenIds(*value);
  if (!ids.ok()) return fields.ValueError("eos_token_id", *value, "a token id or a list of them");
  *out = *std::move(ids);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ModelConfig> ParseModelConfig(absl::string_view text, absl::string_view path_view) {
  const std::string path(path_view);
  if (static_cast<int64_t>(text.size()) > kMaxConfigBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": has ", text.size(), " bytes; the limit is ", kMaxConfigBytes));
  }

  SLUICE_ASSIGN_OR_RETURN(const Json json, ParseJson(text, path, kMaxConfigDepth));
  if (!json.is_object())
    return absl::InvalidArgumentError(absl::StrCat(path, ": is not a JSON object"));

  ModelConfig config;
  Fields fields(json, path);
  SLUICE_ASSIGN_OR_RETURN(const Architecture* arch, ReadArchitecture(fields, path));
  config.architecture = std::string(arch->name);
  config.qk_norm = arch->qk_norm, config.qkv_bias = arch->qkv_bias;
  SLUICE_RETURN_IF_ERROR(ReadShape(fields, *arch, path, &config));
  if (arch->experts) SLUICE_RETURN_IF_ERROR(ReadExperts(fields, path, &config));
  SLUICE_RETURN_IF_ERROR(ReadRope(fields, path, &config.rope));
  SLUICE_RETURN_IF_ERROR(fields.ReadNumber("rms_norm_eps", 0, 1, &config.rms_norm_eps));
  SLUICE_RETURN_IF_ERROR(fields.ReadNumber("initializer_range", 0, 10, &config.initializer_range));
  SLUICE_RETURN_IF_ERROR(fields.ReadBoolean("tie_word_embeddings", &config.tie_word_embeddings));
  SLUICE_RETURN_IF_ERROR(ReadDType(fields, &config.dtype));
  SLUICE_RETURN_IF_ERROR(ReadEndTokens(fields, &config.eos_ids));
  SLUICE_RETURN_IF_ERROR(ReadRemainingKeys(fields, *arch, &config));
  SLUICE_RETURN_IF_ERROR(fields.CheckNoUnknownKeys());
  return config;
}

std::vector<TensorSpec> ModelConfig::Parameters(DType dtype) const {
  std::vector<TensorSpec> out;
  const auto add = [&](std::string name, std::vector<int64_t> shape) {
    out.push_back({std::move(name), dtype, std::move(shape)});
  };

  // Widths of the queries, and of the keys or values.
  const int64_t q = num_heads * head_dim, kv = num_kv_heads * head_dim;
  add("model.embed_tokens.weight", {vocab_size, hidden_size});
  add("model.norm.weight", {hidden_size});
  if (!tie_word_embeddings) add("lm_head.weight", {vocab_size, hidden_size});
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const std::string p = absl::StrCat("model.layers.", layer, ".");
    add(p + "input_layernorm.weight", {hidden_size});
    add(p + "post_attention_layernorm.weight", {hidden_size});
    add(p + "self_attn.q_proj.weight", {q, hidden_size});
    add(p + "self_attn.k_proj.weight", {kv, hidden_size});
    add(p + "self_attn.v_proj.weight", {kv, hidden_size});
    add(p + "self_attn.o_proj.weight", {hidden_size, q});
    if (qkv_bias)
      add(p + "self_attn.q_proj.bias", {q}), add(p + "self_attn.k_proj.bias", {kv}),
          add(p + "self_attn.v_proj.bias", {kv});
    if (qk_norm) add(p + "self_attn.q_norm.weight", {head_dim});
    if (qk_norm) add(p + "self_attn.k_norm.weight", {head_dim});
    if (o_bias) add(p + "self_attn.o_proj.bias", {hidden_size});

    const auto add_mlp = [&](const std::string& prefix, int64_t width) {
      add(prefix + "gate_proj.weight", {width, hidden_size});
      add(prefix + "up_proj.weight", {width, hidden_size});
      add(prefix + "down_proj.weight", {hidden_size, width});
    };
    if (num_experts == 0) add_mlp(p + "mlp.", intermediate_size);
    if (mlp_bias)
      add(p + "mlp.gate_proj.bias", {intermediate_size}),
          add(p + "mlp.up_proj.bias", {intermediate_size}),
          add(p + "mlp.down_proj.bias", {hidden_size});
    if (num_experts > 0) add(p + "mlp.gate.weight", {num_experts, hidden_size});
    for (int64_t e = 0; e < num_experts; ++e)
      add_mlp(absl::StrCat(p, "mlp.experts.", e, "."), expert_size);
  }

  std::sort(out.begin(), out.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  return out;
}

int64_t ModelConfig::NumParameters() const {
  int64_t n = 0;
  for (const TensorSpec& spec : Parameters(DType::kF32)) n += NumElements(spec.shape).value_or(0);
  return n;
}

std::vector<float> RopeConfig::Frequencies(int64_t head_dim) const {
  constexpr float kTwoPi = 6.283185307179586f;
  std::vector<float> frequencies(head_dim / 2);
  for (int64_t i = 0; i < head_dim / 2; ++i) {
    float f = 1.0f / std::pow(static_cast<float>(theta),
                              static_cast<float>(2 * i) / static_cast<float>(head_dim));

    if (type == Type::kLinear) f /= static_cast<float>(factor);
    if (type == Type::kLlama3) {
      const float context = static_cast<float>(original_context), wavelength = kTwoPi / f;
      const float low = static_cast<float>(low_freq_factor),
                  high = static_cast<float>(high_freq_factor);
      const float slowed = f / static_cast<float>(factor);
      if (wavelength > context / low) {
        f = slowed;
      } else if (wavelength >= context / high) {
        const float mix = (context / wavelength - low) / (high - low);
        f = (1 - mix) * slowed + mix * f;
      }
    }
    frequencies[i] = f;
  }
  return frequencies;
}

}  // namespace sluice
