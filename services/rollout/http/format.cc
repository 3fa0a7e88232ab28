#include "services/rollout/http/format.h"

#include "absl/strings/str_cat.h"
#include "common/base/utf8.h"
#include "common/chat/text.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"
#include "services/rollout/http/error.h"

namespace sluice::rollout::http {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}
std::string Event(const Json& json) { return absl::StrCat("data: ", Dump(json), "\n\n"); }

Json Finish(const AnswerPart& part) {
  if (part.finish == FinishReason::kNone) return nullptr;
  if (part.finish == FinishReason::kLength) return "length";
  return part.calls_before + part.calls.size() > 0 ? "tool_calls" : "stop";
}

// Returns the tool calls of a part. `streamed` adds to each call its index in the answer.
Json ToolCallsJson(const ResponseHead& head, size_t index, const AnswerPart& part, bool streamed) {
  Json calls = Json::array();
  for (size_t i = 0; i < part.calls.size(); ++i) {
    const size_t place = part.calls_before + i;
    Json call = Json::object();
    if (streamed) call["index"] = place;
    call["id"] =
        absl::StrCat("call_", head.id.substr(head.id.find('-') + 1), "_", index, "_", place);
    call["type"] = "function";
    call["function"] = {{"name", part.calls[i].name}, {"arguments", part.calls[i].arguments}};
    calls.push_back(std::move(call));
  }
  return calls;
}

Json UsageJson(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

// Names a token by its text. A token that is not whole characters is named by its bytes, as OpenAI
// does: bytes:\xe2\x96.
std::string TokenName(const std::string& bytes) {
  if (IsUtf8(bytes)) return bytes;
  std::string name = "bytes:";
  for (const char c : bytes)
    absl::StrAppend(&name, "\\x", absl::Hex(static_cast<uint8_t>(c), absl::kZeroPad2));
  return name;
}

// Returns the most likely tokens at the place of this one, as TokenDetails::top has them.
absl::Span<const TokenLogprob> Top(const TokenEvent& event) {
  return event.details == nullptr ? absl::Span<const TokenLogprob>()
                                  : absl::MakeConstSpan(event.details->top);
}

float LogprobOf(const ApiRequest& request, const TokenEvent& event) {
  return request.raw_logprobs && event.details != nullptr ? event.details->raw_logprob
                                                          : event.logprob;
}

Json ChatToken(const Tokenizer& tokenizer, int32_t token, float logprob) {
  const std::string text = tokenizer.TokenBytes(token);

  // A special token has a name and no bytes, because the answer's text leaves special tokens out:
  // a client that joins the bytes of all tokens gets that text.
  const bool in_text = tokenizer.Piece(token, /*skip_special=*/true).has_value();
  Json bytes = Json::array();
  for (const char c : in_text ? absl::string_view(text) : absl::string_view())
    bytes.push_back(static_cast<uint8_t>(c));

  return {{"token", TokenName(text)}, {"logprob", logprob}, {"bytes", std::move(bytes)}};
}

Json ChatLogprobs(const ApiRequest& request, const Tokenizer& tokenizer, const AnswerPart& part) {
  Json content = Json::array();
  for (const TokenEvent& event : part.tokens) {
    Json token = ChatToken(tokenizer, event.token, LogprobOf(request, event));
    token["top_logprobs"] = Json::array();
    for (const TokenLogprob& top : Top(event))
      token["top_logprobs"].push_back(ChatToken(tokenizer, top.token, top.logprob));
    content.push_back(std::move(token));
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

Json CompletionLogprobs(const ApiRequest& request, const Tokenizer& tokenizer,
                        const Prepared::Prompt& prompt, const AnswerPart& part) {
  Json tokens = Json::array(), logprobs = Json::array(), tops = Json::array(),
       offsets = Json::array();
  const auto add = [&](const TokenEvent& event, uint64_t offset, bool has_logprob) {
    const std::string name = TokenName(tokenizer.TokenBytes(event.token));
    tokens.push_back(name);
    logprobs.push_back(has_logprob ? Json(LogprobOf(request, event)) : Json(nullptr));
    offsets.push_back(offset);
    // The token itself is always listed. Of two tokens with the same text, the more likely one is
    // listed.
    Json top = Json::object();
    for (const TokenLogprob& other : Top(event))
      top.emplace(TokenName(tokenizer.TokenBytes(other.token)), other.logprob);
    top.emplace(name, LogprobOf(request, event));
    tops.push_back(has_logprob ? std::move(top) : Json(nullptr));
  };
  for (size_t i = 0; i < part.prompt.size(); ++i) add(part.prompt[i], prompt.offsets[i], i > 0);

  uint64_t offset =
      part.prompt.empty() ? part.characters_before : chat::CountCodePoints(prompt.text);
  for (const TokenEvent& event : part.tokens) {
    add(event, offset, true);
    if (event.details != nullptr) offset += chat::CountCodePoints(event.details->text);
  }
  return {{"tokens", std::move(tokens)},
          {"token_logprobs", std::move(logprobs)},
          {"top_logprobs", request.top_logprobs > 0 ? std::move(tops) : Json(nullptr)},
          {"text_offset", std::move(offsets)}};
}

// Returns the runs of tokens of one version: [{"version": "1:25", "tokens": 12}, ..]
Json Versions(const AnswerPart& part) {
  Json runs = Json::array();
  const PolicyVersion* last = nullptr;
  for (const TokenEvent& event : part.tokens) {
    if (last == nullptr || *last != event.version)
      runs.push_back({{"version", event.version.str()}, {"tokens", 0}});
    runs.back()["tokens"] = runs.back()["tokens"].get<int>() + 1;
    last = &event.version;
  }
  return runs;
}

// Adds the fields that both kinds of choices may have besides the text.
void AddDetails(const Prepared& prepared, const Tokenizer& tokenizer, size_t index,
                const AnswerPart& part, bool first, Json* choice) {
  const ApiRequest& request = prepared.request;
  (*choice)["logprobs"] =
      !request.logprobs ? Json(nullptr)
      : request.chat
          ? ChatLogprobs(request, tokenizer, part)
          : CompletionLogprobs(request, tokenizer, prepared.prompts[index / request.n], part);
  (*choice)["finish_reason"] = Finish(part);
  if (request.return_token_ids) {
    if (first && !request.chat)
      (*choice)["prompt_token_ids"] = *prepared.prompts[index / request.n].ids;
    Json ids = Json::array();
    for (const TokenEvent& event : part.tokens) ids.push_back(event.token);
    (*choice)["token_ids"] = std::move(ids);
  }
  if (request.return_versions) (*choice)["versions"] = Versions(part);
}

Json Start(const ResponseHead& head, const char* object) {
  return {{"id", head.id},
          {"object", object},
          {"created", head.created},
          {"model", head.model},
          {"system_fingerprint", head.fingerprint}};
}

Json Entry(const ModelEntry& model) {
  return {{"id", model.name},
          {"object", "model"},
          {"created", model.created},
          {"owned_by", "sluice"},
          {"version", model.version},
          {"digest", model.digest},
          {"max_model_len", model.max_context}};
}

}  // namespace

std::string Format::Whole(const ResponseHead& head, absl::Span<const AnswerPart> answers,
                          const Usage& usage) const {
  const ApiRequest& request = prepared_.request;
  Json json = Start(head, request.chat ? "chat.completion" : "text_completion");
  json["choices"] = Json::array();
  for (size_t i = 0; i < answers.size(); ++i) {
    Json choice = {{"index", i}};
    if (request.chat) {
      choice["message"] = {
          {"role", "assistant"}, {"content", answers[i].text}, {"refusal", nullptr}};
      if (!answers[i].calls.empty()) {
        if (answers[i].text.empty()) choice["message"]["content"] = nullptr;
        choice["message"]["tool_calls"] = ToolCallsJson(head, i, answers[i], /*streamed=*/false);
      }
    } else {
      choice["text"] = answers[i].text;
    }
    AddDetails(prepared_, tokenizer_, i, answers[i], /*first=*/true, &choice);
    json["choices"].push_back(std::move(choice));
  }
  json["usage"] = UsageJson(usage);
  if (request.chat && request.return_token_ids)
    json["prompt_token_ids"] = *prepared_.prompts.front().ids;
  return Dump(json);
}

std::string Format::Chunk(const ResponseHead& head, size_t index, const AnswerPart& part,
                          bool first) const {
  const ApiRequest& request = prepared_.request;
  Json json = Start(head, request.chat ? "chat.completion.chunk" : "text_completion");
  Json choice = {{"index", index}};
  if (request.chat) {
    choice["delta"] = Json::object();
    if (first) choice["delta"]["role"] = "assistant";
    if (first || !part.text.empty()) choice["delta"]["content"] = part.text;
    if (!part.calls.empty())
      choice["delta"]["tool_calls"] = ToolCallsJson(head, index, part, /*streamed=*/true);
  } else {
    choice["text"] = part.text;
  }
  AddDetails(prepared_, tokenizer_, index, part, first, &choice);
  json["choices"] = Json::array({std::move(choice)});
  if (request.chat && request.return_token_ids && first)
    json["prompt_token_ids"] = *prepared_.prompts.front().ids;
  if (request.include_usage) json["usage"] = nullptr;
  return Event(json);
}

std::string Format::UsageChunk(const ResponseHead& head, const Usage& usage) const {
  Json json = Start(head, prepared_.request.chat ? "chat.completion.chunk" : "text_completion");
  json["choices"] = Json::array();
  json["usage"] = UsageJson(usage);
  return Event(json);
}

std::string Format::ErrorChunk(const absl::Status& status) {
  return absl::StrCat("data: ", ErrorJson(ApiErrorOf(status)), "\n\n");
}

std::string ModelJson(const ModelEntry& model) { return Dump(Entry(model)); }

std::string ModelsJson(absl::Span<const ModelEntry> models) {
  Json list = Json::array();
  for (const ModelEntry& model : models) list.push_back(Entry(model));
  return Dump({{"object", "list"}, {"data", std::move(list)}});
}

}  // namespace sluice::rollout::http
