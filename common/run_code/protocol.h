#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"

// What a server of sandboxes and its clients exchange: POST /run_code with JSON, as SandboxFusion
// has it. A request is one program and one input; what is expected of its output is not in it.
namespace sluice::run_code {

inline constexpr char kPath[] = "/run_code";
inline constexpr uint64_t kMostOutput = 1 << 20;   // Bytes of stdout that a server keeps.
inline constexpr size_t kMostRequest = 16 << 20;   // Bytes of a request.
inline constexpr size_t kMostReply = 16ull << 20;  // JSON writes some bytes as six.

struct Request {
  bool cpp = false;  // Else Python.
  std::string code, input;
  absl::Duration compile_timeout = absl::Seconds(10);
  absl::Duration run_timeout = absl::Seconds(10);  // Wall time.
  // Not in SandboxFusion, whose servers ignore it: CPU time. Infinite: as run_timeout.
  absl::Duration cpu_timeout = absl::InfiniteDuration();
  std::optional<uint64_t> memory_bytes;  // Unset: the server's own limit.
};

// How a compiler or a program ended.
struct Ran {
  bool timed_out = false;
  int64_t code = 0;  // Its exit code, or that of the signal that killed it, below 0. If it ended.
  absl::Duration time;
  std::string out, err;
};
struct Reply {
  std::optional<Ran> compiled;  // Unset: nothing was compiled.
  std::optional<Ran> ran;       // Unset: the program was not compiled.
};

std::string ToJson(const Request& request);
// INVALID_ARGUMENT: it is no request, or asks for what these servers do not have (other languages,
// files, packages). The message says what.
absl::StatusOr<Request> ParseRequest(absl::string_view json);

std::string ToJson(const Reply& reply);
// The reply of a server that failed.
std::string FailureJson(absl::string_view message);
// UNAVAILABLE: the server says that it has failed, or its reply is not by the rules. In either case
// it says nothing about the program.
absl::StatusOr<Reply> ParseReply(absl::string_view json);

}  // namespace sluice::run_code
