#include "services/rollout/http/request.h"

#include <array>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/json_excerpt.h"
#include "common/base/status.h"
#include "common/checkpoint/json.h"
#include "services/rollout/http/error.h"
#include "services/rollout/http/fields.h"
#include "services/rollout/http/messages.h"

namespace sluice::rollout::http {
namespace {

constexpr uint32_t kCompletionTokens = 16;  // OpenAI's default of /v1/completions.
constexpr uint32_t kMostTokens = std::numeric_limits<int32_t>::max();
constexpr size_t kMaxStopIds = 256, kMaxStopBytes = 1024;
// Variables of chat templates that this server or the tokenizer sets.
constexpr std::array<const char*, 5> kReservedVariables = {
    "messages", "tools", "add_generation_prompt", "bos_token", "eos_token"};

absl::StatusOr<Json> ParseBody(absl::string_view body) {
  if (body.size() > kMaxBody)
    return Refuse(
        413, "request_too_large", "",
        absl::StrCat("the body has ", body.size(), " bytes; at most ", kMaxBody, " are taken"));
  absl::StatusOr<Json> json =
      ParseJson(body, "the body", kMaxDepth,
                {.values = kMaxValues, .members = kMaxMembers, .exact_integers = true});
  if (!json.ok()) return Refuse(400, "invalid_json", "", json.status().message());
  if (!json->is_object())
    return Refuse(400, "invalid_json", "",
                  absl::StrCat("the body is ", JsonExcerpt(*json), "; wanted: an object"));
  return json;
}

void ReadStop(Fields* fields, std::vector<std::string>* stop) {
  const Json* const given = fields->Find("stop");
  if (given == nullptr) return;
  const Json list = given->is_array() ? *given : Json::array({*given});
  if (list.size() > kMaxStops)
    return fields->Fail(
        "stop", absl::StrCat(" has ", list.size(), " texts; at most ", kMaxStops, " are taken"));
  for (const Json& text : list) {
    if (!text.is_string() || text.get_ref<const std::string&>().empty() ||
        text.get_ref<const std::string&>().size() > kMaxStopBytes) {
      return fields->FailUnfit("stop", *given,
                               absl::StrCat("texts of 1 to ", kMaxStopBytes, " bytes"));
    }
    stop->push_back(text.get<std::string>());
  }
}

void ReadStream(Fields* fields, ApiRequest* request) {
  fields->Bool("stream", &request->stream);
  const Json* const options = fields->Find("stream_options");
  if (options == nullptr) return;
  if (!request->stream) return fields->Fail("stream_options", " is given without stream");
  if (!options->is_object()) return fields->FailUnfit("stream_options", *options, "an object");
  Fields inner(*options, "stream_options.");
  inner.Bool("include_usage", &request->include_usage);
  if (const absl::Status status = inner.Finish(); !status.ok()) {
    fields->Fail("stream_options", absl::StrCat(": ", status.message()));
  }
}

void ReadSeed(Fields* fields, std::optional<uint64_t>* seed) {
  const Json* const given = fields->Find("seed");
  if (given == nullptr) return;
  if (!given->is_number_integer())
    return fields->FailUnfit("seed", *given, "an integer of 64 bits");
  *seed = given->is_number_unsigned() ? given->get<uint64_t>()
                                      : static_cast<uint64_t>(given->get<int64_t>());
}

// Reads fields that clients send with values that change nothing. Other values are refused, because
// this build would not do what is asked.
void ReadNeutral(Fields* fields, uint32_t n) {
  const std::pair<const char*, Json> neutral[] = {{"frequency_penalty", 0},
                                                  {"presence_penalty", 0},
                                                  {"repetition_penalty", 1},
                                                  {"length_penalty", 1},
                                                  {"logit_bias", Json::object()},
                                                  {"best_of", n},
                                                  {"response_format", {{"type", "text"}}},
                                                  {"use_beam_search", false},
                                                  {"skip_special_tokens", true},
                                                  {"spaces_between_special_tokens", true},
                                                  {"include_stop_str_in_output", false},
                                                  {"suffix", ""},
                                                  {"parallel_tool_calls", true},
                                                  {"store", false}};
  for (const auto& [name, value] : neutral) {
    const Json* const given = fields->Find(name);
    if (given != nullptr && *given != value)
      fields->FailUnsupported(name, *given, absl::StrCat("accepts only ", value.dump()));
  }
  std::string user, tier;  // Ignored. They name the user and a priority.
  fields->Text("user", &user);
  fields->Text("service_tier", &tier);
  const Json* const metadata = fields->Find("metadata");
  if (metadata != nullptr && !metadata->is_object())
    fields->FailUnfit("metadata", *metadata, "an object");
}

// Reads the fields that both calls have.
void ReadCommon(Fields* fields, ApiRequest* request) {
  if (fields->Find("model") == nullptr)
    fields->Fail("model", " is missing; GET /v1/models lists what there is");
  fields->Text("model", &request->model);
  SamplingParams& sampling = request->sampling;
  double temperature = 1;
  fields->Number("temperature", 0, 100, &temperature);
  sampling.temperature = static_cast<float>(temperature);

  fields->Number("top_p", 0, 1, &sampling.top_p);
  // In the API 0 means the most likely token. The engine reads 0 as no limit, so the smallest
  // positive value is used, which keeps only that token.
  if (sampling.top_p == 0) sampling.top_p = std::numeric_limits<double>::min();

  // Some clients write -1 for no limit, as vLLM does.
  if (const Json* const top_k = fields->Find("top_k"); top_k == nullptr || *top_k != -1)
    fields->Integer("top_k", 0, kMostTokens, &sampling.top_k);
  fields->Number("min_p", 0, 1, &sampling.min_p);
  fields->Integer("min_tokens", 0, kMostTokens, &sampling.min_tokens);
  fields->Bool("ignore_eos", &sampling.ignore_eos);
  fields->Ids("stop_token_ids", kMaxStopIds, &sampling.stop_ids);
  ReadStop(fields, &sampling.stop);

  fields->Integer("n", 1, kMaxN, &request->n);
  ReadSeed(fields, &request->seed);
  ReadStream(fields, request);
  fields->Bool("return_token_ids", &request->return_token_ids);
  fields->Bool("return_versions", &request->return_versions);

  // With greedy sampling the processed log-probs are all 0, so the default is then `raw`.
  std::string mode = sampling.temperature == 0 ? "raw" : "processed";
  fields->Text("logprobs_mode", &mode);
  if (mode != "processed" && mode != "raw")
    fields->FailUnfit("logprobs_mode", mode, "processed or raw");
  request->raw_logprobs = mode == "raw";
  ReadNeutral(fields, request->n);
}

bool IsIds(const Json& value) {
  return value.is_array() && !value.empty() && value.front().is_number();
}

void ReadPrompt(Fields* fields, std::vector<ApiRequest::Prompt>* prompts) {
  const Json* const given = fields->Find("prompt");
  if (given == nullptr) return fields->Fail("prompt", " is missing");
  constexpr char kWanted[] =
      "a text, a list of texts, a list of token ids, or a list of such lists";
  const auto add = [&](const Json& prompt) {
    if (prompt.is_string()) {
      prompts->push_back({.text = prompt.get<std::string>(), .ids = {}});
      return true;
    }
    if (!IsIds(prompt)) {
      fields->FailUnfit("prompt", prompt, kWanted);
      return false;
    }
    auto ids = ParseTokenIds(prompt);
    if (!ids.ok()) {
      fields->Fail("prompt", absl::StrCat(": ", ids.status().message()));
      return false;
    }
    prompts->push_back({.text = "", .ids = *std::move(ids)});
    return true;
  };

  if (given->is_string() || IsIds(*given)) {
    add(*given);
    return;
  }
  if (!given->is_array() || given->empty()) return fields->FailUnfit("prompt", *given, kWanted);
  if (given->size() > kMaxAnswers)
    return fields->Fail("prompt", absl::StrCat(" has ", given->size(), " prompts; at most ",
                                               kMaxAnswers, " are taken"));
  for (const Json& prompt : *given) {
    if (!add(prompt)) return;
  }
}

// Reads max_tokens; max_completion_tokens is its newer name.
void ReadChatTokens(Fields* fields, uint32_t* max_tokens) {
  std::optional<uint32_t> old_name, new_name;
  fields->Integer("max_tokens", 1, kMostTokens, &old_name);
  fields->Integer("max_completion_tokens", 1, kMostTokens, &new_name);
  if (old_name && new_name && *old_name != *new_name) {
    fields->Fail("max_tokens", absl::StrCat(" is ", *old_name, " and max_completion_tokens ",
                                            *new_name, "; give one of them"));
  }
  *max_tokens = new_name.value_or(old_name.value_or(0));
}

void ReadToolChoice(Fields* fields, bool* use_tools) {
  const Json* const choice = fields->Find("tool_choice");
  if (choice == nullptr || *choice == "auto") return;
  if (*choice == "none") {
    *use_tools = false;
  } else {
    fields->FailUnsupported("tool_choice", *choice, "cannot force a call; give auto or none");
  }
}

absl::Status ReadConversation(Fields* fields, ApiRequest* request) {
  bool use_tools = true, add_generation_prompt = true;
  ReadToolChoice(fields, &use_tools);
  fields->Bool("continue_final_message", &request->continue_final_message);
  if (request->continue_final_message) add_generation_prompt = false;
  const Json* const messages = fields->Find("messages");
  const Json* const tools = fields->Find("tools");
  const Json* const more = fields->Find("chat_template_kwargs");
  if (messages == nullptr) fields->Fail("messages", " is missing");
  if (more != nullptr && !more->is_object())
    fields->FailUnfit("chat_template_kwargs", *more, "an object");
  if (!fields->ok()) return fields->Finish();

  auto conversation = std::make_shared<Json>(more == nullptr ? Json::object() : *more);
  for (const char* name : kReservedVariables) {
    if (conversation->contains(name))
      fields->Fail("chat_template_kwargs",
                   absl::StrCat(".", name, " must not be set by a request"));
  }
  SLUICE_ASSIGN_OR_RETURN((*conversation)["messages"], ReadMessages(*messages));
  if (tools != nullptr && !tools->empty()) {
    SLUICE_ASSIGN_OR_RETURN(Json read, ReadTools(*tools));
    request->has_tools = use_tools;
    if (use_tools) (*conversation)["tools"] = std::move(read);
  }

  (*conversation)["add_generation_prompt"] = add_generation_prompt;
  const Json& last = (*conversation)["messages"].back();
  if (request->continue_final_message &&
      (last["role"] != "assistant" || !last["content"].is_string() ||
       last["content"].get_ref<const std::string&>().empty())) {
    fields->Fail("continue_final_message",
                 ": the last message must be the assistant's, with a text to continue");
  }
  request->conversation = std::move(conversation);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<ApiRequest> ParseCompletion(absl::string_view body) {
  SLUICE_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  ApiRequest request;
  Fields fields(json, "");
  ReadCommon(&fields, &request);
  ReadPrompt(&fields, &request.prompts);
  fields.Bool("echo", &request.echo);

  request.most_tokens = kCompletionTokens;
  std::optional<uint32_t> max_tokens;
  fields.Integer("max_tokens", request.echo ? 0 : 1, kMostTokens, &max_tokens);
  request.prompt_only = max_tokens == 0;
  request.sampling.max_tokens = request.prompt_only ? 1 : max_tokens.value_or(0);

  std::optional<uint32_t> logprobs;
  fields.Integer("logprobs", 0, kMaxTopLogprobs, &logprobs);
  request.logprobs = logprobs.has_value();
  request.top_logprobs = logprobs.value_or(0);

  if (request.prompts.size() * request.n > kMaxAnswers) {
    fields.Fail("n", absl::StrCat(" is ", request.n, " for ", request.prompts.size(),
                                  " prompts; at most ", kMaxAnswers, " answers are taken at once"));
  }
  SLUICE_RETURN_IF_ERROR(fields.Finish());
  return request;
}

absl::StatusOr<ApiRequest> ParseChat(absl::string_view body) {
  SLUICE_ASSIGN_OR_RETURN(const Json json, ParseBody(body));
  ApiRequest request;
  request.chat = true;
  Fields fields(json, "");
  ReadCommon(&fields, &request);
  ReadChatTokens(&fields, &request.sampling.max_tokens);
  fields.Bool("logprobs", &request.logprobs);
  fields.Integer("top_logprobs", 0, kMaxTopLogprobs, &request.top_logprobs);
  if (request.top_logprobs > 0 && !request.logprobs)
    fields.Fail("top_logprobs", " is given without logprobs");
  SLUICE_RETURN_IF_ERROR(ReadConversation(&fields, &request));
  SLUICE_RETURN_IF_ERROR(fields.Finish());
  return request;
}

absl::StatusOr<ApiRequest> ParseMessages(absl::string_view messages) {
  if (messages.size() > kMaxBody)
    return Refuse(
        413, "request_too_large", "messages",
        absl::StrCat("messages has ", messages.size(), " bytes; at most ", kMaxBody, " are taken"));
  const absl::StatusOr<Json> json =
      ParseJson(messages, "messages", kMaxDepth,
                {.values = kMaxValues, .members = kMaxMembers, .exact_integers = true});
  if (!json.ok()) return Refuse(400, "invalid_json", "messages", json.status().message());
  auto conversation = std::make_shared<Json>(Json::object());
  SLUICE_ASSIGN_OR_RETURN((*conversation)["messages"], ReadMessages(*json));
  (*conversation)["add_generation_prompt"] = true;
  ApiRequest request;
  request.chat = true;
  request.conversation = std::move(conversation);
  return request;
}

}  // namespace sluice::rollout::http
