#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace sluice {

// Reads a verifier's arguments one by one and complains of what is left, so that a misspelt one is
// never ignored.
class ArgReader {
 public:
  // `owner`: for messages, as in "text (property: length)".
  ArgReader(absl::string_view owner, const nlohmann::json& args) : owner_(owner), args_(args) {}

  // The value, or `fallback` where it is absent.
  std::string String(absl::string_view name, absl::string_view fallback);
  bool Bool(absl::string_view name, bool fallback);
  // Within [low, high].
  double Number(absl::string_view name, double fallback, double low, double high);
  std::vector<std::string> Strings(absl::string_view name);

  // The first complaint: a value of the wrong type or out of range, or an argument nobody read.
  absl::Status Finish();

 private:
  const nlohmann::json* Find(absl::string_view name);
  void Complain(absl::string_view name, absl::string_view what);

  const std::string owner_;
  const nlohmann::json& args_;
  std::vector<std::string> read_;
  absl::Status status_;
};

// A gold as text. A number is the text that JSON writes for it (12 is "12", 12.5 is "12.5").
// INVALID_ARGUMENT: it is neither a text nor a number, or a number that a double does not hold
// exactly, and so may differ from what the file says.
absl::StatusOr<std::string> GoldText(const nlohmann::json& gold);

// The row's field `answer` as text. INVALID_ARGUMENT: it is absent, or no gold (see GoldText).
absl::StatusOr<std::string> GoldOf(const nlohmann::json& row);

}  // namespace sluice
