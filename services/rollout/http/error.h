#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice::rollout::http {

// What a client is told in place of an answer: an HTTP status and the fields of OpenAI's error
// object.
struct ApiError {
  int status = 500;
  std::string code;   // One word, "model_not_found"; empty: null.
  std::string param;  // The request's field; empty: null.
  std::string message;
  std::string allow;    // Of a 405: the methods that the path takes.
  int retry_after = 0;  // Seconds; 0: no Retry-After.
};

// The same as an error that travels up.
absl::Status Refuse(int status, absl::string_view code, absl::string_view param,
                    absl::string_view message);
absl::Status RefuseMethod(absl::string_view allow, absl::string_view message);  // 405.
// Of any error: what Refuse() made, else by its code; what is not the client's fault is a 500.
ApiError ApiErrorOf(const absl::Status& status);

// {"error": {"message": .., "type": .., "param": .., "code": ..}}
std::string ErrorJson(const ApiError& error);

}  // namespace sluice::rollout::http
