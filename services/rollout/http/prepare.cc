#include "services/rollout/http/prepare.h"

#include <algorithm>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/chat/text.h"
#include "common/prompt/prompt.h"
#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"
#include "services/rollout/http/error.h"
#include "services/rollout/http/model.h"

namespace sluice::rollout::http {
namespace {

// Cuts a rendered conversation at the end of its last message, after which templates write the end
// of the turn. transformers does the same.
absl::StatusOr<std::string> CutAfterLastMessage(std::string rendered, const std::string& last) {
  const absl::string_view stripped = absl::StripAsciiWhitespace(last);
  const size_t at = stripped.empty() ? std::string::npos : rendered.rfind(std::string(stripped));
  if (at == std::string::npos) {
    return Refuse(400, "invalid_value", "continue_final_message",
                  "continue_final_message: the chat template does not write the last message as it "
                  "is, so it cannot be continued");
  }
  const absl::string_view whole = absl::StripLeadingAsciiWhitespace(last);
  const bool as_it_is = absl::string_view(rendered).substr(at, whole.size()) == whole;
  rendered.resize(at + (as_it_is ? whole.size() : stripped.size()));
  return rendered;
}

absl::StatusOr<std::vector<int32_t>> EncodeChat(const ApiRequest& request,
                                                const PromptRenderer& renderer) {
  if (!renderer.has_template()) {
    return Refuse(400, "no_chat_template", "messages",
                  "this model has no chat template; send a prompt to /v1/completions instead");
  }
  absl::StatusOr<std::string> text = renderer.RenderChat(*request.conversation);
  if (!text.ok()) return Refuse(400, "chat_template_error", "messages", text.status().message());
  if (request.continue_final_message) {
    SLUICE_ASSIGN_OR_RETURN(
        text, CutAfterLastMessage(
                  *std::move(text),
                  (*request.conversation)["messages"].back()["content"].get<std::string>()));
  }
  absl::StatusOr<std::vector<int32_t>> ids =
      renderer.tokenizer().Encode(*text, {.add_special = false});
  if (!ids.ok()) return Refuse(400, "invalid_value", "messages", ids.status().message());
  return ids;
}

// Returns the number of characters of `text` before each token. It never decreases: a token that
// the tokenizer adds has the offset of the place where it was added.
std::vector<uint64_t> CharacterOffsets(absl::string_view text, absl::Span<const Span> tokens) {
  std::vector<uint64_t> offsets;
  size_t at = 0;
  uint64_t characters = 0;
  for (const Span& token : tokens) {
    if (token.begin > at) {
      characters += chat::CountCodePoints(text.substr(at, token.begin - at));
      at = token.begin;
    }
    offsets.push_back(characters);
  }
  return offsets;
}

// Sets the text of a prompt that was given as ids, and the offset of each token in it. The text is
// that of the engine's detokenizer, so that it and the answer's text fit together.
absl::Status EchoIds(const Tokenizer& tokenizer, const std::vector<int32_t>& ids,
                     Prepared::Prompt* prompt) {
  SLUICE_ASSIGN_OR_RETURN(const std::unique_ptr<Detokenizer> detokenizer,
                          Detokenizer::Create(&tokenizer, {}));
  uint64_t characters = 0;
  for (const int32_t id : ids) {
    prompt->offsets.push_back(characters);
    const size_t before = prompt->text.size();
    detokenizer->Push(id, &prompt->text);
    characters += chat::CountCodePoints(absl::string_view(prompt->text).substr(before));
  }
  return absl::OkStatus();
}

absl::StatusOr<Prepared::Prompt> EncodePrompt(const ApiRequest& request, ApiRequest::Prompt given,
                                              const PromptRenderer& renderer) {
  Prepared::Prompt prompt;
  if (!given.ids.empty()) {
    if (request.echo) SLUICE_RETURN_IF_ERROR(EchoIds(renderer.tokenizer(), given.ids, &prompt));
  } else if (request.echo && request.logprobs) {
    absl::StatusOr<Tokenizer::Encoding> encoding =
        renderer.tokenizer().EncodeWithOffsets(given.text, {.add_special = true});
    if (!encoding.ok()) return Refuse(400, "invalid_value", "prompt", encoding.status().message());
    prompt.offsets = CharacterOffsets(given.text, encoding->offsets);
    given.ids = std::move(encoding->ids);
  } else {
    absl::StatusOr<std::vector<int32_t>> ids =
        renderer.tokenizer().Encode(given.text, {.add_special = true});
    if (!ids.ok()) return Refuse(400, "invalid_value", "prompt", ids.status().message());
    given.ids = *std::move(ids);
  }
  if (given.ids.empty())
    return Refuse(400, "invalid_value", "prompt", "prompt has no tokens; wanted: at least one");
  prompt.ids = std::make_shared<const std::vector<int32_t>>(std::move(given.ids));
  if (request.echo && prompt.text.empty()) prompt.text = std::move(given.text);
  return prompt;
}

// Translates an error of the engine, which names a field as in "sampling.top_p 0.9: ..", into one
// of the API, which names it "top_p".
absl::Status TranslateEngineError(const absl::Status& status) {
  if (status.ok()) return status;
  const absl::string_view message = absl::StripPrefix(status.message(), "sampling.");
  const absl::string_view field = message.size() < status.message().size()
                                      ? message.substr(0, message.find_first_of(" :"))
                                      : "";
  return Refuse(400, "unsupported_value", field, message);
}

}  // namespace

absl::StatusOr<Prepared> Prepare(ApiRequest request, const Model& model) {
  Prepared prepared;
  const PromptRenderer& renderer = model.renderer();
  if (request.chat) {
    SLUICE_ASSIGN_OR_RETURN(std::vector<int32_t> ids, EncodeChat(request, renderer));
    if (ids.empty())
      return Refuse(400, "invalid_value", "messages",
                    "messages: the chat template renders them to nothing");
    prepared.prompts.push_back(
        {.ids = std::make_shared<const std::vector<int32_t>>(std::move(ids)), .text = ""});
  }
  for (ApiRequest::Prompt& given : request.prompts) {
    SLUICE_ASSIGN_OR_RETURN(Prepared::Prompt prompt,
                            EncodePrompt(request, std::move(given), renderer));
    prepared.prompts.push_back(std::move(prompt));
  }
  request.prompts.clear();

  const uint32_t context = model.max_context();
  uint32_t room = context;  // Tokens left after the longest prompt.
  for (const Prepared::Prompt& prompt : prepared.prompts) {
    const uint64_t tokens = prompt.ids->size();
    const absl::string_view param = request.chat ? "messages" : "prompt";
    if (tokens >= context) {
      return Refuse(400, "context_length_exceeded", param,
                    absl::StrCat("the prompt has ", tokens, " tokens; this model's context holds ",
                                 context, " with the answer; shorten the prompt"));
    }
    if (tokens + request.sampling.max_tokens > context) {
      return Refuse(400, "context_length_exceeded", param,
                    absl::StrCat("the prompt has ", tokens, " tokens and max_tokens is ",
                                 request.sampling.max_tokens, "; this model's context holds ",
                                 context, "; shorten the prompt or lower max_tokens"));
    }
    room = std::min(room, context - static_cast<uint32_t>(tokens));
    prepared.prompt_tokens += tokens;
  }

  if (request.sampling.max_tokens == 0)
    request.sampling.max_tokens = std::min(room, request.most_tokens);
  SLUICE_RETURN_IF_ERROR(
      TranslateEngineError(CheckSampling(request.sampling, /*trainable=*/false)));
  prepared.request = std::move(request);
  return prepared;
}

std::vector<Request> MakeRequests(const Prepared& prepared, uint64_t seed, RequestClass order) {
  const ApiRequest& request = prepared.request;
  std::vector<Request> requests;
  requests.reserve(prepared.answers());
  for (size_t p = 0; p < prepared.prompts.size(); ++p) {
    for (uint32_t member = 0; member < request.n; ++member) {
      requests.push_back({.group = request.n > 1 ? p + 1 : 0,
                          .prompt = prepared.prompts[p].ids,
                          .seed = GroupSeed(seed, p),
                          .member = member,
                          .sampling = request.sampling,
                          .order = order,
                          .trainable = false,
                          .text = true,
                          .raw_logprobs = request.raw_logprobs,
                          .top_logprobs = request.top_logprobs,
                          .prompt_logprobs = request.echo && request.logprobs});
    }
  }
  return requests;
}

}  // namespace sluice::rollout::http
