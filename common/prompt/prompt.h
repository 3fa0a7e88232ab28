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

// A prompt in two forms: for the model, and for people and verifiers.
struct RenderedPrompt {
  std::vector<int32_t> tokens;
  std::string messages;  // A JSON list of {"role", "content"}, in UTF-8.
};

// Makes prompts from dataset rows. A row is a JSON object of mapped fields; its `prompt` is a text
// or a list of messages.
//
// With a chat template, a text becomes one user message, and the output of the template is encoded
// unchanged, because the template writes the special tokens itself. Without one, the source's
// format (such as "{question}\n", or just the prompt) is filled in and encoded with the special
// tokens that the tokenizer adds, such as a leading <s>.
//
// Immutable, so thread-safe.
class PromptRenderer {
 public:
  struct Source {
    std::string name;
    std::string format;  // Empty means "{prompt}".
    // Maps the name of a row's field to its name in the file. A format may use either name.
    std::map<std::string, std::string> columns;
  };

  // Loads tokenizer and chat template. `chat_template` is "model" or empty (the one in the model
  // directory, if there is one), "none", or the path of a file.
  // NOT_FOUND: there is no tokenizer.json, or no such template file.
  // INVALID_ARGUMENT: tokenizer_config.json is not a JSON object.
  // Other errors as Tokenizer::Load and ChatTemplate::Compile.
  static absl::StatusOr<std::unique_ptr<PromptRenderer>> Load(const ModelDir& dir,
                                                              const std::string& chat_template,
                                                              std::vector<Source> sources);
  ~PromptRenderer();

  // Renders one row.
  // INVALID_ARGUMENT: there is no such source, or the row does not fit; the message names field and
  // value.
  absl::StatusOr<RenderedPrompt> Render(absl::string_view source, absl::string_view row_json) const;

  bool has_template() const { return template_ != nullptr; }
  // Empty if there is none.
  const std::string& template_source() const { return template_source_; }
  // The output of the template for `variables` ("messages", "tools", ..). bos_token and eos_token
  // are added to them. Encode it without add_special.
  // FAILED_PRECONDITION: there is no template.
  // Other errors as ChatTemplate::Render.
  absl::StatusOr<std::string> RenderChat(nlohmann::ordered_json variables) const;

  // The text of an answer, without special tokens.
  std::string AnswerText(absl::Span<const int32_t> tokens) const;
  // For each token, the number of bytes of that text which it and those before it have written. A
  // token that ends within a character counts the bytes of the character that it has. Where a token
  // does not write its own bytes (which become U+FFFD, say), the ends are those of the text as it
  // becomes certain. They never fall, and the last is the size of the text.
  std::vector<uint32_t> AnswerEnds(absl::Span<const int32_t> tokens) const;
  // `messages`, a JSON list, with `answer` added as a message of the assistant.
  static std::string WithAnswer(absl::string_view messages, absl::string_view answer);

  const Tokenizer& tokenizer() const { return *tokenizer_; }

 private:
  PromptRenderer() = default;

  std::unique_ptr<Tokenizer> tokenizer_;
  std::unique_ptr<ChatTemplate> template_;  // Null: prompts follow the source's format.
  std::string template_source_;
  std::string bos_token_, eos_token_;  // Variables for the template. Empty: undefined.
  std::map<std::string, Source, std::less<>> sources_;
};

// Replaces each {name} in `format` by a field of the row: a text as it is, any other value as JSON.
// {{ and }} stand for braces.
// INVALID_ARGUMENT: a brace is not closed, or the row has no such field.
absl::StatusOr<std::string> FillFormat(absl::string_view format,
                                       const std::map<std::string, std::string>& fields);

}  // namespace sluice
