#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/secret.h"

namespace sluice {

// A model that judges answers, from the operator's judges.yaml
// (proto/sluice/policy/v1/judges.proto, which says what each value means).
struct JudgeConfig {
  std::string name;
  std::string url;  // Of the call itself, such as https://judge.example.com/v1/chat/completions.
  bool loopback = false;  // The address is on this machine.
  std::string model;
  Secret key;           // Empty: none is sent.
  std::string ca_file;  // Empty: the system's authorities.
  uint32_t max_in_flight = 64;
  std::optional<double> calls_per_minute;
  std::optional<uint64_t> tokens;
  double temperature = 0;
  uint32_t max_reply = 2048;
  std::string reply_limit_field = "max_tokens";
};

// Reads a judges file and the keys that it names.
// INVALID_ARGUMENT BAD_CONFIG: one line for each problem, with its place. A key over plain HTTP to
// another machine is one, and so is a key file that others can read.
absl::StatusOr<std::vector<JudgeConfig>> ReadJudges(const std::string& path);

// NOT_FOUND NO_JUDGE: `who` knows the judges `known`, and not `name`. `hint` says how it may.
absl::Status NoJudge(absl::string_view who, absl::string_view name,
                     const std::vector<std::string>& known, const char* hint);

}  // namespace sluice
