#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

// What is scored: the policy's text, and the row it answered.
struct Answer {
  std::string text;        // All that the policy wrote in its last turn.
  bool truncated = false;  // Ended by a limit, without an end token.
};

// A statement about the policy. What the policy caused (wrong, unreadable, endless) is a verdict,
// mostly 0.
struct Verdict {
  double score = 0;
  std::string reason;  // One word: right, wrong, no_answer, unfinished, ..
};

// Scores answers by rule. Pure: the verdict depends on the arguments alone.
//
// Immutable, so thread-safe.
class Verifier {
 public:
  virtual ~Verifier() = default;

  // `row`: the mapped fields, with the gold in `answer`. INVALID_ARGUMENT: the row lacks what the
  // verifier needs, or its gold cannot be read; that is the data's fault, and no verdict about the
  // policy.
  virtual absl::StatusOr<Verdict> Score(const Answer& answer, const nlohmann::json& row) const = 0;

  // Whether answers to `row` can be scored at all: INVALID_ARGUMENT where Score() would refuse the
  // row whatever the answer is. Data readers ask this before anything is generated for the row.
  virtual absl::Status CheckRow(const nlohmann::json& row) const = 0;

  // Every score lies in [low, high].
  virtual double low() const { return 0; }
  virtual double high() const { return 1; }
};

struct VerifierRow {
  absl::string_view name;
  absl::string_view doc;  // One line.
  // `args`: an object. INVALID_ARGUMENT: an unknown or unfit argument, by name.
  absl::StatusOr<std::unique_ptr<Verifier>> (*make)(const nlohmann::json& args);
};

// All verifiers of this build. INVALID_ARGUMENT of MakeVerifier: no such name (the known ones are
// listed), or its args.
const std::vector<VerifierRow>& Verifiers();
absl::StatusOr<std::unique_ptr<Verifier>> MakeVerifier(absl::string_view name,
                                                       const nlohmann::json& args);

// What counts as the answer: the text behind the last </think>. False: thinking was begun and not
// ended.
bool AfterThinking(absl::string_view text, absl::string_view* answer);

}  // namespace sluice
