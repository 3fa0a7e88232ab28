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
inline constexpr int kMaxDepth = 64;           // Nesting of the JSON.
inline constexpr size_t kMaxValues = 1 << 20;  // JSON values in one body.
inline constexpr size_t kMaxMembers = 4096;    // Members of one JSON object.
inline constexpr size_t kMaxMessages = 4096;
inline constexpr size_t kMaxTools = 1 << 20;  // Bytes, as JSON.
inline constexpr uint32_t kMaxN = 128;
inline constexpr size_t kMaxAnswers = 1024;  // Number of prompts times n.
inline constexpr size_t kMaxStops = 16;

// A request to /v1/completions or /v1/chat/completions whose fields have the right kinds and
// ranges. Whether a model can serve it is checked later.
struct ApiRequest {
  struct Prompt {
    std::string text;
    std::vector<int32_t> ids;  // If not empty, used instead of the text.
  };

  bool chat = false;
  std::string model;
  std::vector<Prompt> prompts;  // At least one for completions; none for chat.
  bool echo = false;            // Put the prompt's text before each answer's.
  // For chat: the template's input, {"messages": .., "tools": .., "add_generation_prompt": ..} and
  // the request's chat_template_kwargs. Text parts of contents are joined, and arguments of tool
  // calls are parsed.
  std::shared_ptr<const nlohmann::ordered_json> conversation;
  bool has_tools = false;
  bool continue_final_message = false;

  // If max_tokens is 0, an answer may have as many tokens as the context has room for, but at most
  // `most_tokens`.
  SamplingParams sampling;
  uint32_t most_tokens = std::numeric_limits<uint32_t>::max();
  // Return the prompt without an answer. One token is sampled, to get the prompt's log-probs.
  bool prompt_only = false;
  uint32_t n = 1;
  std::optional<uint64_t> seed;
  bool stream = false;
  bool include_usage = false;  // Send a last chunk with the token counts.
  bool logprobs = false;
  uint32_t top_logprobs = 0;  // Number of alternatives listed for each token.
  bool raw_logprobs = false;  // Log-probs before temperature, bans and cuts.
  bool return_token_ids = false;
  bool return_versions = false;
};

// Parse a request's body. INVALID_ARGUMENT, made by Refuse() with status 400: it is not JSON,
// exceeds a limit, or has a field that is unknown, of the wrong kind or range, or not supported by
// this build.
absl::StatusOr<ApiRequest> ParseCompletion(absl::string_view body);
absl::StatusOr<ApiRequest> ParseChat(absl::string_view body);
// Parses only the messages of a chat, a JSON list; all other fields have their defaults.
absl::StatusOr<ApiRequest> ParseMessages(absl::string_view messages);

}  // namespace sluice::rollout::http
