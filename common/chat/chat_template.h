#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {
class Clock;

// A compiled chat template: the part of Jinja that published templates use, with Hugging Face's
// settings (trim_blocks, lstrip_blocks, loop controls, immutable sandbox, no autoescape, one
// newline at the end dropped). It renders the same text as Python. README.md lists what is built.
// Anything else is refused with its name, by Compile() if the source shows it, else by Render().
//
// Templates come from untrusted directories, so everything is bounded. Compile() refuses a source
// over 1 MiB and nesting deeper than 64. A rendering fails after 1e6 steps, 200 ms of CPU time, 4
// MiB of output or of strings alive at one time, 64 nested macro calls, or for a range of more than
// 1e5 numbers (limits.h).
//
// Immutable, so thread-safe.
class ChatTemplate {
 public:
  struct Options {
    // Clock for the limit of time; null: the CPU time of the calling thread. Must outlive the call.
    Clock* clock = nullptr;
    // The time that strftime_now() formats, in UTC. A job fixes it, so that prompts can be
    // repeated. If it is InfinitePast(), the function is undefined, and templates that test for it
    // use the date that they contain.
    absl::Time now = absl::InfinitePast();
  };
  struct Rendered {
    std::string text;
    // The byte ranges [begin, end) of `text` that {% generation %} blocks printed: what the
    // assistant said, from which masks are made.
    std::vector<std::pair<size_t, size_t>> generated;
  };

  // Messages have the form `template:LINE:COLUMN: what, value seen`.
  // INVALID_ARGUMENT: the source does not parse.
  // UNIMPLEMENTED: it uses a construct that is not built.
  // RESOURCE_EXHAUSTED: it is too long or nested too deeply.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Compile(absl::string_view source);
  ~ChatTemplate();

  // `variables` is an object. Templates expect `messages` (a list of {role, content}) and
  // `add_generation_prompt` in it. Messages have the form above.
  // INVALID_ARGUMENT: the template raised an error, or used a value of the wrong type.
  // UNIMPLEMENTED: it uses a method or format that is not built.
  // RESOURCE_EXHAUSTED: a limit was exceeded.
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& variables,
                                     const Options& options) const;
  absl::StatusOr<std::string> Render(const nlohmann::ordered_json& variables) const;
  absl::StatusOr<Rendered> RenderWithMask(const nlohmann::ordered_json& variables,
                                          const Options& options) const;

 private:
  struct Compiled;
  explicit ChatTemplate(std::unique_ptr<const Compiled> compiled);
  const std::unique_ptr<const Compiled> compiled_;
};

}  // namespace sluice
