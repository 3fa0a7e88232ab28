#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

// A chat template: the bounded part of Jinja that this build needs, set as Hugging Face sets it (trim_blocks, lstrip_blocks,
// one trailing newline dropped, undefined prints nothing).
//
// Statements: for (with else), if/elif/else, set of a name, comments. Expressions: literals, names, .attribute,
// [subscript], + - * / // % ~, comparisons, in, and or not, inline if, the tests `defined`, `none`, `string`, `mapping`,
// `iterable`, the filters `trim`, `tojson`, `length`, `default`, the function raise_exception, and
// loop.index, index0, first, last, length. Anything else is refused at Compile by name, with line and column.
//
// The template comes from an untrusted directory: rendering ends after 1e6 steps, 4 MB of output, or 64 levels.
//
// Immutable, so thread-safe.
class ChatTemplate {
 public:
  // INVALID_ARGUMENT: does not parse. UNIMPLEMENTED: a construct this build does not have. Both say `template:LINE:COL`.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Compile(absl::string_view source);
  ~ChatTemplate();

  // `variables`: an object; `messages` (a list of {role, content}) and `add_generation_prompt` are what templates expect.
  // INVALID_ARGUMENT: the template raised, or used a value as what it is not. RESOURCE_EXHAUSTED: a limit.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& variables) const;

 private:
  struct Program;
  explicit ChatTemplate(std::unique_ptr<Program> program);
  std::unique_ptr<Program> program_;
};

}  // namespace sluice
