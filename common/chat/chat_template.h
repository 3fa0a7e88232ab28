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

// A chat template: the Jinja that published templates use, set as Hugging Face sets it
// (trim_blocks, lstrip_blocks, loop controls, immutable sandbox, no autoescape, one trailing
// newline dropped), rendered as Python renders it. README.md lists what is built; anything else is
// refused by name, at Compile where the source tells.
//
// A template comes from an untrusted directory. Compile refuses a source over 1 MiB and nesting
// over 64; a rendering ends after 1e6 steps, 200 ms of CPU time, 4 MB of output or of strings
// alive, 64 nested macro calls, ranges over 1e5 (limits.h).
//
// Immutable, so thread-safe.
class ChatTemplate {
 public:
  struct Options {
    // For the limit of time; null: the calling thread's CPU time. Outlives the call.
    Clock* clock = nullptr;
    // What strftime_now() formats, in UTC: fixed in the job, so that prompts repeat. Infinite:
    // there is no such function, and templates that ask whether it is defined take the date that
    // they hold.
    absl::Time now = absl::InfinitePast();
  };
  struct Rendered {
    std::string text;
    // [begin, end) bytes of `text` that {% generation %} blocks printed: what the assistant said,
    // for masks.
    std::vector<std::pair<size_t, size_t>> generated;
  };

  // INVALID_ARGUMENT: does not parse. UNIMPLEMENTED: a construct this build does not have.
  // RESOURCE_EXHAUSTED: too long or too deep. Messages read `template:LINE:COLUMN: what, value
  // seen`.
  static absl::StatusOr<std::unique_ptr<ChatTemplate>> Compile(absl::string_view source);
  ~ChatTemplate();

  // `variables`: an object; `messages` (a list of {role, content}) and `add_generation_prompt` are
  // what templates expect. INVALID_ARGUMENT: the template raised, or used a value as what it is
  // not. RESOURCE_EXHAUSTED: a limit. UNIMPLEMENTED: a method or format that is not built. Messages
  // as above.
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
