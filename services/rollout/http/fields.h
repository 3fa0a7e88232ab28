#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace sluice::rollout::http {

using Json = nlohmann::ordered_json;

// Reads the fields of one JSON object by name. The first field that does not fit is kept as the
// error; later errors are dropped. Finish() returns that error, or refuses the first field that
// was not asked for. A field that is absent or null leaves `value` unchanged.
//
// Include this header in .cc files only, because nlohmann/json.hpp, which it includes, is large.
// `object` outlives the reader.
class Fields {
 public:
  // `path` is put before names in error messages, such as "messages[3]."; it is empty at the top.
  Fields(const Json& object, std::string path) : object_(object), path_(std::move(path)) {}

  const Json* Find(absl::string_view name);  // Returns null if the field is absent or null.
  void Bool(absl::string_view name, bool* value);
  void Number(absl::string_view name, double low, double high, double* value);
  void Integer(absl::string_view name, int64_t low, int64_t high, uint32_t* value);
  void Integer(absl::string_view name, int64_t low, int64_t high, std::optional<uint32_t>* value);
  void Text(absl::string_view name, std::string* value);
  // Reads a list of token ids, or a single one.
  void Ids(absl::string_view name, size_t most, std::vector<int32_t>* ids);

  // Keeps an error with status 400, if it is the first one. Its text is the field's name followed
  // by `message`, as in "prompt" and " is missing".
  void Fail(absl::string_view name, absl::string_view message);
  // Does the same as Fail(), with the text "NAME is VALUE; wanted: ..".
  void FailUnfit(absl::string_view name, const Json& value, absl::string_view wanted);
  // Does the same with the code unsupported_value and the text "NAME is VALUE: this build ..".
  void FailUnsupported(absl::string_view name, const Json& value, absl::string_view why);
  bool ok() const { return status_.ok(); }
  // Returns OK, or the first error.
  absl::Status Finish();

 private:
  const Json& object_;
  const std::string path_;
  std::vector<std::string> asked_;  // Names that were read.
  absl::Status status_;
};

}  // namespace sluice::rollout::http
