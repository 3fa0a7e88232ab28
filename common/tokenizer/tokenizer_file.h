#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json_fwd.hpp"

namespace sluice {

// A tokenizer.json as read: its two long lists apart from the rest, so that 200 thousand tokens
// never become JSON values.
struct TokenizerFile {
  TokenizerFile();
  TokenizerFile(TokenizerFile&&) noexcept;
  ~TokenizerFile();

  // An object; `vocab` and `merges` of `model` are null in it.
  std::unique_ptr<nlohmann::json> rest;
  std::vector<std::pair<std::string, int32_t>> vocab;       // In file order.
  std::vector<std::pair<std::string, std::string>> merges;  // By rank.
  bool has_vocab = false, has_merges = false;

  static constexpr size_t kMaxBytes = 64 << 20, kMaxDepth = 64, kMaxValues = 2'000'000;
  static constexpr int32_t kMaxId = (1 << 21) - 1;

  // INVALID_ARGUMENT: no JSON, a key that comes twice, an id or a merge of a wrong form, or over a
  // limit above.
  static absl::StatusOr<TokenizerFile> Parse(absl::string_view json);
};

}  // namespace sluice
