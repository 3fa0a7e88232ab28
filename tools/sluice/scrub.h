#pragma once

#include <map>
#include <string>

#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

// Takes secrets and texts of prompts out of what leaves a machine in a bug report.
namespace sluice::cli {

class Scrubber {
 public:
  // `environment`: names and values of the variables of this process. The values of those whose
  // names sound secret (TOKEN, PASSWORD, ..) are taken out wherever they stand.
  explicit Scrubber(const std::map<std::string, std::string>& environment);

  // The text without: PEM blocks, passwords in URLs, values after names such as password or
  // api_key, bearer tokens, values of secret variables.
  std::string ScrubSecrets(absl::string_view text) const;
  // Also without quotations of more than kMostQuoted bytes, which may be rows of data.
  std::string ScrubText(absl::string_view text) const;
  // The same for each text in a JSON value; also removes values of keys with secret names.
  nlohmann::ordered_json ScrubJson(const nlohmann::ordered_json& json) const;
  // The same for each line of a log, of which each may be a JSON object.
  std::string ScrubLines(absl::string_view lines) const;

  static constexpr int kMostQuoted = 32;

 private:
  std::map<std::string, std::string> secrets_;  // Value -> name of the variable.
};

// Whether a key or a variable of this name holds a secret: "redis_password", "OPENAI_API_KEY".
bool IsSecretName(absl::string_view name);

}  // namespace sluice::cli
