#pragma once

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/config/spec_problems.h"

namespace google::protobuf {
class Message;
}

namespace sluice::config {

// What the job file can say and this build cannot do. The table in refused.cc is the only one:
// `config validate`, `config defaults`, the controller's Submit and the daemons all read it. A
// feature that comes to work loses its row.
struct Refusal {
  absl::string_view
      path;  // Of a value, without places in lists, or of a block: then every value in it.
  absl::string_view
      words;  // Refused words, with a space between. Empty: every value but the default.
  absl::string_view but;      // Beside the default: the one value that is not refused.
  absl::string_view why;      // Empty: "VALUE is not in this build".
  absl::string_view instead;  // What to write. Empty: one of the words that this build has.
};

absl::Span<const Refusal> Refusals();

// The row that refuses this word at this path; null: none does. With an empty word: the row that
// refuses every value but the default.
const Refusal* RefusalOf(absl::string_view rule_path, absl::string_view word);

// Adds an error (0013) for every value of the spec that a row refuses. Values that equal their
// default never are, so the printed defaults load; nor are those of blocks that are unset.
void CheckRefused(const google::protobuf::Message& spec, SpecProblems* problems);

}  // namespace sluice::config
