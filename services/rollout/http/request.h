#pragma once

#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"
#include "services/rollout/core/engine/engine.h"

namespace sluice::rollout::http {

inline constexpr size_t kMaxBody = 8 << 20;    // Bytes.
inline constexpr int kMaxDepth = 64;           // Of JSON.
inline constexpr size_t kMaxValues = 1 << 20;  // JSON values in one body.
inline constexpr size_t kMaxMembers = 4096;    // Of one JSON object.
inline constexpr size_t kMaxMessages = 4096;
inline constexpr size_t kMaxTools = 1 << 20;  // Bytes, as JSON.
inline constexpr uint32_t kMaxN = 128;
inline constexpr size_t kMaxAnswers = 1024;  // Prompts times n.
inline constexpr size_t kMaxStops = 16;

// What /v1/completions or /v1/chat/completions is asked, in range and of the right kinds; whether a
// model can do it is seen later.
struct ApiRequest {
  struct Prompt {
    std::string text;
    std::vector<int32_t> ids;  // Not empty: in place of the text.
  };

  bool chat = false;
  std::string model;
  std::vector<Prompt> prompts;  // Of completions: at least one.
  bool echo = false;            // The prompt's text comes before each answer's.
  // Of chat: what the template reads, {"messages": .., "tools": .., "add_generation_prompt": ..}
  // and the request's chat_template_kwargs. Contents of text parts are joined, arguments of tool
  // calls parsed.
  std::shared_ptr<const nlohmann::ordered_json> conversation;
  bool has_tools = false;
  bool continue_final_message = false;

  // max_tokens 0: as many as the context holds, and no more than `most_tokens`.
  SamplingParams sampling;
  uint32_t most_tokens = std::numeric_limits<uint32_t>::max();
  // The prompt is told, and no answer. One token is sampled, for the prompt's log-probs.
  bool prompt_only = false;
  uint32_t n = 1;
  std::optional<uint64_t> seed;
  bool stream = false;
  bool include_usage = false;  // A last chunk with the counts.
  bool logprobs = false;
  uint32_t top_logprobs = 0;  // Of each token, beside its own.
  bool raw_logprobs = false;  // Before temperature, bans and cuts.
  bool return_token_ids = false;
  bool return_versions = false;
};

// INVALID_ARGUMENT as Refuse() makes it, 400: not JSON, over a limit, a field of the wrong kind or
// range, unknown, or of something that this build does not have.
absl::StatusOr<ApiRequest> ParseCompletion(absl::string_view body);
absl::StatusOr<ApiRequest> ParseChat(absl::string_view body);
// The same of a chat's messages alone, a JSON list; all else is at its default.
absl::StatusOr<ApiRequest> ParseMessages(absl::string_view messages);

}  // namespace sluice::rollout::http
