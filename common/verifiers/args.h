#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace sluice {

// Reads a verifier's arguments one by one. Finish() reports arguments that nobody read, so that a
// misspelt one is never ignored. Not thread-safe.
class ArgReader {
 public:
  // `owner` is used in messages, as in "text (property: length)".
  ArgReader(absl::string_view owner, const nlohmann::json& args) : owner_(owner), args_(args) {}

  // These return the value, or `fallback` if it is absent or wrong; Finish() reports a wrong one.
  std::string String(absl::string_view name, absl::string_view fallback);
  bool Bool(absl::string_view name, bool fallback);
  // These two need a value in [low, high].
  double Number(absl::string_view name, double fallback, double low, double high);
  int64_t Integer(absl::string_view name, int64_t fallback, int64_t low, int64_t high);
  // A single string counts as a list of one.
  std::vector<std::string> Strings(absl::string_view name);
  // An empty mapping if it is absent or wrong.
  nlohmann::json Object(absl::string_view name);

  // Returns the first wrong value that was read so far.
  const absl::Status& status() const { return status_; }
  // Returns the first problem: a value of the wrong type or out of range, or an argument that
  // nobody read.
  absl::Status Finish();

 private:
  const nlohmann::json* Find(absl::string_view name);
  void Complain(absl::string_view name, absl::string_view what);

  const std::string owner_;
  const nlohmann::json& args_;
  std::vector<std::string> read_;
  absl::Status status_;
};

// Returns a gold (the reference answer of a row) as text. A number becomes the text that JSON
// writes for it (12 is "12", 12.5 is "12.5"). INVALID_ARGUMENT: the gold is neither a text nor a
// number, or it is a number that was read as a double and is 2^53 or more in size, so that it may
// have lost the last digits that the file gives. The message names the row's field, `field`.
absl::StatusOr<std::string> GoldText(const nlohmann::json& gold,
                                     absl::string_view field = "answer");

// Returns the row's field `answer` as text. INVALID_ARGUMENT: the field is absent or cannot be a
// gold (see GoldText).
absl::StatusOr<std::string> GoldOf(const nlohmann::json& row);

}  // namespace sluice
