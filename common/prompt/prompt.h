#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {
class ChatTemplate;
class Tokenizer;
struct ModelDir;

// A prompt as the model reads it, and as people and verifiers do.
struct RenderedPrompt {
  std::vector<int32_t> tokens;
  std::string messages;  // A JSON list of {"role", "content"}, UTF-8.
};

// Makes prompts of dataset rows. A row is a JSON object of mapped fields; `prompt` is a text, or a
// list of messages.
//
// With a chat template: a text becomes one user message; the template's text is encoded as it
// stands (it writes its own special tokens). Without: the source's format ("{question}\n", or the
// prompt as it is) is encoded with what the tokenizer adds, such as a leading <s>.
//
// Immutable, so thread-safe.
class PromptRenderer {
 public:
  struct Source {
    std::string name;
    std::string format;  // Empty: "{prompt}".
    // From a row's field to its name in the file; a format may use either.
    std::map<std::string, std::string> columns;
  };

  // `chat_template`: "model" or empty (the directory's, if it has one), "none", or a file.
  // NOT_FOUND: no tokenizer.json, or no such template file. INVALID_ARGUMENT: a format with an
  // unclosed brace. Else as Tokenizer::Load and ChatTemplate::Compile.
  static absl::StatusOr<std::unique_ptr<PromptRenderer>> Load(const ModelDir& dir,
                                                              const std::string& chat_template,
                                                              std::vector<Source> sources);
  ~PromptRenderer();

  // INVALID_ARGUMENT: no such source, or a row that does not fit; the message names field and
  // value.
  absl::StatusOr<RenderedPrompt> Render(absl::string_view source, absl::string_view row_json) const;

  bool has_template() const { return template_ != nullptr; }
  const std::string& template_source() const { return template_source_; }  // Empty: there is none.
  // The template's text for `variables` ("messages", "tools", ..), to which the special tokens'
  // names are added; to be encoded without add_special. FAILED_PRECONDITION: there is no template.
  // Else as ChatTemplate::Render.
  absl::StatusOr<std::string> RenderChat(nlohmann::ordered_json variables) const;

  // The text of an answer, special tokens left out.
  std::string AnswerText(absl::Span<const int32_t> tokens) const;
  // The prompt's messages and the answer as the assistant's.
  static std::string WithAnswer(absl::string_view messages, absl::string_view answer);

  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  PromptRenderer() = default;

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;  // Null: formats.
  std::string template_source_;
  std::string bos_token_, eos_token_;  // As templates name them; empty: undefined.
  std::map<std::string, Source, std::less<>> sources_;
};

// `format` with each {name} replaced by a field of the row, as it stands if it is a text, else as
// JSON; {{ and }} are braces. INVALID_ARGUMENT: an unclosed brace, or a name that the row lacks.
absl::StatusOr<std::string> FillFormat(absl::string_view format,
                                       const std::map<std::string, std::string>& fields);

}  // namespace sluice
