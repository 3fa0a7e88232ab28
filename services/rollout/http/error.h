#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace sluice::rollout::http {

// The error that a client gets instead of an answer: an HTTP status and the fields of OpenAI's
// error object.
struct ApiError {
  int status = 500;
  std::string code;   // One word, "model_not_found"; empty for null.
  std::string param;  // Field of the request; empty for null.
  std::string message;
  std::string allow;    // Set for status 405: the methods that the path takes.
  int retry_after = 0;  // Seconds, for the header Retry-After; 0 for none.
};

// These return an absl::Status that carries such an error. RefuseMethod() makes one with the HTTP
// status 405.
absl::Status Refuse(int status, absl::string_view code, absl::string_view param,
                    absl::string_view message);
absl::Status RefuseMethod(absl::string_view allow, absl::string_view message);
// Returns the error for any status that is not OK: the one that it carries, or else one that
// follows from its code. Errors that are not the client's fault become 500 or 503.
ApiError ApiErrorOf(const absl::Status& status);

// {"error": {"message": .., "type": .., "param": .., "code": ..}}
std::string ErrorJson(const ApiError& error);

}  // namespace sluice::rollout::http
