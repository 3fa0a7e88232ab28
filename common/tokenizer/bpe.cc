#include "common/tokenizer/bpe.h"

#include <queue>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"
#include "common/tokenizer/utf8.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {
using Json = nlohmann::ordered_json;

uint64_t PairKey(int32_t left, int32_t right) { return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right); }

absl::StatusOr<std::pair<std::string, std::string>> ReadMerge(const Json& entry, size_t index) {
  if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
    return std::make_pair(entry[0].get<std::string>(), entry[1].get<std::string>());
  }
  if (entry.is_string()) {
    const std::string text = entry.get<std::string>();
    const std::vector<std::string> parts = absl::StrSplit(text, ' ');
    if (parts.size() == 2) return std::make_pair(parts[0], parts[1]);
  }
  return absl::InvalidArgumentError(absl::StrCat("model.merges[", index, "] is neither \"a b\" nor [\"a\", \"b\"]"));
}
}  // namespace

absl::StatusOr<Bpe> Bpe::Parse(const Json& model) {
  Bpe bpe;
  const std::string type = model.value("type", "BPE");
  if (type != "BPE") return absl::UnimplementedError(absl::StrCat("model.type \"", type, "\": only BPE is read"));
  for (const char* const key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (model.contains(key) && !model[key].is_null() && model[key] != Json("")) {
      return absl::UnimplementedError(absl::StrCat("model.", key, " must be null"));
    }
  }
  if (model.value("ignore_merges", false)) return absl::UnimplementedError("model.ignore_merges must be false");
  if (!model.contains("vocab") || !model["vocab"].is_object()) return absl::InvalidArgumentError("model.vocab is no object");
  for (const auto& [token, id] : model["vocab"].items()) {
    if (!id.is_number_integer() || id < 0 || id >= (1 << 24)) {
      return absl::InvalidArgumentError(absl::StrCat("model.vocab: the id of \"", token, "\" is not in [0, 2^24)"));
    }
    const int32_t value = id.get<int32_t>();
    if (static_cast<size_t>(value) >= bpe.tokens_.size()) bpe.tokens_.resize(value + 1);
    bpe.tokens_[value] = token;
    bpe.ids_[token] = value;
  }
  if (!model.contains("merges") || !model["merges"].is_array()) return absl::InvalidArgumentError("model.merges is no list");
  uint32_t rank = 0;
  for (const Json& entry : model["merges"]) {
    SLUICE_ASSIGN_OR_RETURN(const auto pair, ReadMerge(entry, rank));
    const auto left = bpe.Id(pair.first), right = bpe.Id(pair.second), whole = bpe.Id(pair.first + pair.second);
    if (!left || !right || !whole) {
      return absl::InvalidArgumentError(absl::StrCat("model.merges[", rank, "]: \"", pair.first, "\" + \"", pair.second, "\" or a part of it is not in the vocabulary"));
    }
    bpe.merges_.insert({PairKey(*left, *right), {rank++, *whole}});
  }
  if (model.contains("unk_token") && model["unk_token"].is_string()) {
    bpe.unknown_ = bpe.Id(model["unk_token"].get<std::string>());
    if (!bpe.unknown_) return absl::InvalidArgumentError("model.unk_token is not in the vocabulary");
  }
  bpe.fuse_unknown_ = model.value("fuse_unk", false);
  bpe.byte_fallback_ = model.value("byte_fallback", false);
  if (bpe.byte_fallback_) {
    for (int b = 0; b < 256; ++b) bpe.byte_ids_.push_back(bpe.Id(absl::StrFormat("<0x%02X>", b)).value_or(-1));
  }
  return bpe;
}

std::optional<int32_t> Bpe::Id(absl::string_view token) const {
  const auto it = ids_.find(token);
  return it == ids_.end() ? std::nullopt : std::optional<int32_t>(it->second);
}

absl::StatusOr<std::vector<int32_t>> Bpe::Characters(absl::string_view word) const {
  std::vector<int32_t> symbols;
  bool after_unknown = false;
  while (!word.empty()) {
    const size_t length = Utf8Length(word);
    if (length == 0) return absl::InvalidArgumentError("the text is not UTF-8");
    const absl::string_view character = word.substr(0, length);
    word.remove_prefix(length);
    if (const auto id = Id(character)) {
      symbols.push_back(*id);
      after_unknown = false;
      continue;
    }
    if (byte_fallback_) {
      bool all = true;
      for (const char c : character) all = all && byte_ids_[static_cast<uint8_t>(c)] >= 0;
      if (all) {
        for (const char c : character) symbols.push_back(byte_ids_[static_cast<uint8_t>(c)]);
        after_unknown = false;
        continue;
      }
    }
    if (!unknown_) {
      return absl::InvalidArgumentError(absl::StrCat("the character \"", character, "\" is not in the vocabulary, which has no unknown token"));
    }
    if (!(after_unknown && fuse_unknown_)) symbols.push_back(*unknown_);
    after_unknown = true;
  }
  return symbols;
}

absl::Status Bpe::EncodeWord(absl::string_view word, std::vector<int32_t>* ids) const {
  SLUICE_ASSIGN_OR_RETURN(std::vector<int32_t> symbols, Characters(word));
  const int n = static_cast<int>(symbols.size());
  std::vector<int> next(n), previous(n);
  for (int i = 0; i < n; ++i) {
    next[i] = i + 1 < n ? i + 1 : -1;
    previous[i] = i - 1;
  }
  struct Candidate {
    uint32_t rank;
    int at;             // Of the left symbol.
    int32_t left, right, id;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto offer = [&](int at) {
    if (at < 0 || next[at] < 0) return;
    const auto it = merges_.find(PairKey(symbols[at], symbols[next[at]]));
    if (it != merges_.end()) queue.push({it->second.rank, at, symbols[at], symbols[next[at]], it->second.id});
  };
  for (int i = 0; i + 1 < n; ++i) offer(i);
  constexpr int32_t kGone = -1;
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    // Merged since it was queued: one of the two is no longer what it was.
    if (symbols[top.at] != top.left || next[top.at] < 0 || symbols[next[top.at]] != top.right) continue;
    const int right = next[top.at];
    symbols[top.at] = top.id;
    symbols[right] = kGone;
    next[top.at] = next[right];
    if (next[right] >= 0) previous[next[right]] = top.at;
    offer(previous[top.at]);
    offer(top.at);
  }
  for (int i = 0; i >= 0 && i < n; i = next[i]) ids->push_back(symbols[i]);
  return absl::OkStatus();
}

}  // namespace sluice
