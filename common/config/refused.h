#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/config/spec_problems.h"

namespace google::protobuf {
class Message;
}

namespace sluice::config {

// What job files can say but this build cannot do. The table in refused.cc is the only one: `config
// validate`, `config defaults`, the controller's Submit and the daemons all use it. When a feature
// is implemented, its row is removed.
struct Refusal {
  // The rule path of a value (without list indexes), or of a block: then the row applies to every
  // value in it.
  absl::string_view path;
  // The refused words, separated by spaces. Empty: every value except the default is refused.
  absl::string_view words;
  absl::string_view but;      // One value that is allowed besides the default.
  absl::string_view why;      // The reason. Empty: "VALUE is not in this build".
  absl::string_view instead;  // What to write instead. Empty: one of the words that this build has.
};

absl::Span<const Refusal> Refusals();

// Returns the row that refuses `word` at this path, or null. With an empty word: the row that
// refuses every value except the default.
const Refusal* RefusalOf(absl::string_view rule_path, absl::string_view word);

// Adds an error (0013) for every value that a row refuses. A value that equals its default is never
// refused, so the printed defaults load. Values in unset blocks are not checked either.
void CheckRefused(const google::protobuf::Message& spec, SpecProblems* problems);

}  // namespace sluice::config
