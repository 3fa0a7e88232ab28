#include "common/prompt/prompt.h"

#include <algorithm>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/chat/chat_template.h"
#include "common/checkpoint/model_dir.h"
#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr uint64_t kMaxConfigBytes = 16 << 20;
constexpr uint64_t kMaxTemplateBytes = 1 << 20;

std::string Dump(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

// The text of a special token in tokenizer_config.json, where it is a text or an object with a
// `content`. Empty if there is none.
std::string SpecialToken(const Json& config, const char* key) {
  const auto it = config.find(key);
  if (it == config.end()) return "";
  if (it->is_string()) return it->get<std::string>();
  if (it->is_object() && it->contains("content") && (*it)["content"].is_string())
    return (*it)["content"].get<std::string>();
  return "";
}

// The text of the chat template; empty if there is none.
absl::StatusOr<std::string> TemplateSource(const ModelDir& dir, const std::string& chat_template) {
  if (chat_template == "none") return std::string();
  if (chat_template.empty() || chat_template == "model") return dir.chat_template;
  return ReadFile(chat_template, kMaxTemplateBytes);
}

// The messages of a row's prompt.
absl::StatusOr<Json> Messages(const Json& prompt) {
  if (prompt.is_string()) return Json::array({{{"role", "user"}, {"content", prompt}}});
  if (!prompt.is_array() || prompt.empty()) {
    return absl::InvalidArgumentError(absl::StrCat("field prompt is ", prompt.type_name(),
                                                   "; wanted: a text or a list of messages"));
  }
  for (const Json& message : prompt) {
    if (!message.is_object() || !message.contains("role") || !message.contains("content")) {
      return absl::InvalidArgumentError(absl::StrCat("field prompt: a message is ",
                                                     Dump(message).substr(0, 100),
                                                     "; wanted: an object with role and content"));
    }
  }
  return prompt;
}

// The fields of a row as texts, under their mapped names and under their names in the file.
std::map<std::string, std::string> FieldTexts(const Json& row,
                                              const std::map<std::string, std::string>& columns) {
  std::map<std::string, std::string> texts;
  for (const auto& [name, column] : columns) {
    if (row.contains(name))
      texts[column] = row[name].is_string() ? row[name].get<std::string>() : Dump(row[name]);
  }
  // If a column has the name of another field, the field wins.
  for (const auto& [name, value] : row.items())
    texts[name] = value.is_string() ? value.get<std::string>() : Dump(value);
  return texts;
}

}  // namespace

absl::StatusOr<std::string> FillFormat(absl::string_view format,
                                       const std::map<std::string, std::string>& fields) {
  std::string text;
  for (size_t i = 0; i < format.size(); ++i) {
    const char c = format[i];
    // {{ and }} stand for one brace.
    if ((c == '{' || c == '}') && i + 1 < format.size() && format[i + 1] == c) {
      text += c;
      ++i;
    } else if (c == '{') {
      const size_t close = format.find('}', i);
      if (close == absl::string_view::npos) {
        return absl::InvalidArgumentError(absl::StrCat("format \"", format, "\": the brace at ", i,
                                                       " is not closed; {{ is a brace"));
      }

      const std::string name(format.substr(i + 1, close - i - 1));
      const auto field = fields.find(name);
      if (field == fields.end()) {
        return absl::InvalidArgumentError(absl::StrCat(
            "format \"", format, "\": the row has no field ", name, "; it has ",
            absl::StrJoin(fields, ", ",
                          [](std::string* out, const auto& f) { out->append(f.first); })));
      }
      text += field->second;
      i = close;
    } else {
      text += c;
    }
  }
  return text;
}

PromptRenderer::~PromptRenderer() = default;

absl::StatusOr<std::unique_ptr<PromptRenderer>> PromptRenderer::Load(
    const ModelDir& dir, const std::string& chat_template, std::vector<Source> sources) {
  auto renderer = std::unique_ptr<PromptRenderer>(new PromptRenderer());
  if (dir.tokenizer_path.empty()) {
    return absl::NotFoundError(
        absl::StrCat(dir.path, " has no tokenizer.json, so no prompt can be encoded"));
  }

  SLUICE_ASSIGN_OR_RETURN(renderer->tokenizer_, Tokenizer::Load(dir.tokenizer_path));

  SLUICE_ASSIGN_OR_RETURN(const std::string source, TemplateSource(dir, chat_template));
  if (!source.empty()) {
    absl::StatusOr<std::unique_ptr<ChatTemplate>> compiled = ChatTemplate::Compile(source);
    if (!compiled.ok())
      return Annotate(compiled.status(), absl::StrCat("chat template of ", dir.path));
    renderer->template_ = *std::move(compiled);
    renderer->template_source_ = source;
  }

  if (!dir.tokenizer_config_path.empty()) {
    SLUICE_ASSIGN_OR_RETURN(const std::string text,
                            ReadFile(dir.tokenizer_config_path, kMaxConfigBytes));
    const Json config = Json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (!config.is_object())
      return absl::InvalidArgumentError(
          absl::StrCat(dir.tokenizer_config_path, " is not a JSON object"));
    renderer->bos_token_ = SpecialToken(config, "bos_token");
    renderer->eos_token_ = SpecialToken(config, "eos_token");
  }

  for (Source& s : sources) {
    if (s.format.empty()) s.format = "{prompt}";
    const std::string name = s.name;
    renderer->sources_.emplace(name, std::move(s));
  }
  return renderer;
}

absl::StatusOr<RenderedPrompt> PromptRenderer::Render(absl::string_view source,
                                                      absl::string_view row_json) const {
  const auto found = sources_.find(source);
  if (found == sources_.end()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "there is no source named ", source, "; the sources are: ",
        absl::StrJoin(sources_, ", ",
                      [](std::string* out, const auto& known) { out->append(known.first); })));
  }

  const Json row = Json::parse(row_json, nullptr, /*allow_exceptions=*/false);
  if (!row.is_object())
    return absl::InvalidArgumentError(
        absl::StrCat("the row of source ", source, " is not a JSON object"));

  RenderedPrompt rendered;
  if (template_ != nullptr) {
    if (!row.contains("prompt"))
      return absl::InvalidArgumentError(
          absl::StrCat("the row of source ", source, " has no field prompt"));
    SLUICE_ASSIGN_OR_RETURN(Json messages, Messages(row["prompt"]));
    SLUICE_ASSIGN_OR_RETURN(const std::string text,
                            RenderChat({{"messages", messages}, {"add_generation_prompt", true}}));
    // The template has written the special tokens already.
    SLUICE_ASSIGN_OR_RETURN(rendered.tokens, tokenizer_->Encode(text, {.add_special = false}));
    rendered.messages = Dump(messages);
  } else {
    absl::StatusOr<std::string> text =
        FillFormat(found->second.format, FieldTexts(row, found->second.columns));
    if (!text.ok()) return Annotate(text.status(), absl::StrCat("row of source ", source));
    SLUICE_ASSIGN_OR_RETURN(rendered.tokens, tokenizer_->Encode(*text, {.add_special = true}));
    rendered.messages = Dump(Json::array({{{"role", "user"}, {"content", *text}}}));
  }

  if (rendered.tokens.empty())
    return absl::InvalidArgumentError(
        absl::StrCat("the prompt of a row of source ", source, " has no tokens"));
  return rendered;
}

absl::StatusOr<std::string> PromptRenderer::RenderChat(Json variables) const {
  if (template_ == nullptr) return absl::FailedPreconditionError("the model has no chat template");
  if (!bos_token_.empty()) variables["bos_token"] = bos_token_;
  if (!eos_token_.empty()) variables["eos_token"] = eos_token_;
  return template_->Render(variables);
}

std::string PromptRenderer::AnswerText(absl::Span<const int32_t> tokens) const {
  return tokenizer_->Decode(tokens, /*skip_special=*/true);
}

std::vector<uint32_t> PromptRenderer::AnswerEnds(absl::Span<const int32_t> tokens) const {
  const auto detokenizer = Detokenizer::Create(tokenizer_.get(), {});
  SLUICE_CHECK(detokenizer.ok());  // There are no stop strings to refuse.
  std::vector<uint32_t> ends(tokens.size());
  // The text so far has `size` bytes. The tokens from `open` on have written the bytes `held` after
  // it, as far as they are not in the text yet; ends[] of these tokens count from its end.
  std::string held;
  size_t open = 0;
  uint32_t size = 0;
  const auto settle = [&](size_t count, absl::string_view text) {
    // The text may begin after a space that was stripped.
    const size_t at = size == 0 && !text.empty()     ? held.rfind(std::string(text))
                      : absl::StartsWith(held, text) ? 0
                                                     : std::string::npos;
    const bool same = at != std::string::npos;
    const auto bytes = static_cast<uint32_t>(text.size()),
               stripped = static_cast<uint32_t>(same ? at : 0);
    for (size_t i = open; i < count; ++i) ends[i] -= std::min(ends[i], stripped);
    for (; open < count && (!same || ends[open] <= bytes); ++open)
      ends[open] = size + (same ? ends[open] : bytes);
    for (size_t i = open; i < count; ++i) ends[i] -= bytes;
    held.erase(0, same ? stripped + bytes : held.size());
    size += bytes;
  };
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (tokenizer_->Piece(tokens[i], /*skip_special=*/true).has_value())
      held += tokenizer_->TokenBytes(tokens[i]);
    ends[i] = static_cast<uint32_t>(held.size());
    text.clear();
    (*detokenizer)->Push(tokens[i], &text);
    settle(i + 1, text);
  }
  text.clear();
  (*detokenizer)->Finish(&text);
  settle(tokens.size(), text);
  // What never became text has ended where the text ends.
  for (; open < tokens.size(); ++open) ends[open] = size;
  if (!ends.empty()) ends.back() = size;
  return ends;
}

std::string PromptRenderer::WithAnswer(absl::string_view messages, absl::string_view answer) {
  // The answer is spliced into the text of the messages. Parsing them would repeat the same work
  // for each member of a group, because all members have the same prompt.
  const std::string message = Dump(Json{{"role", "assistant"}, {"content", std::string(answer)}});
  const absl::string_view body = messages.substr(0, messages.rfind(']'));
  return absl::StrCat(body, body.size() > 1 ? "," : "", message, "]");
}

}  // namespace sluice
