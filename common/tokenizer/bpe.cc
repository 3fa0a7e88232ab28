#include "common/tokenizer/bpe.h"

#include <queue>

#include "absl/algorithm/container.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/tokenizer/byte_level.h"

namespace sluice {
namespace {

// For up to this many symbols, searching all pairs after each merge is faster than a heap.
constexpr size_t kFew = 40;

size_t JoinIndex(char left, char right) {
  return static_cast<size_t>(static_cast<uint8_t>(left)) << 8 | static_cast<uint8_t>(right);
}

uint64_t PairKey(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

}  // namespace

absl::StatusOr<Bpe> Bpe::Create(const Component& model, TokenizerFile file, bool byte_level) {
  if (model.Has("type") && model.type() != "BPE")
    return model.Unsupported(absl::StrCat("the model \"", model.type(), "\""));
  SLUICE_RETURN_IF_ERROR(
      model.CheckKeys({"dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix",
                       "fuse_unk", "byte_fallback", "ignore_merges", "vocab", "merges"}));
  if (model.Has("dropout")) return model.Unsupported("dropout other than null");
  for (const char* const key : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    SLUICE_ASSIGN_OR_RETURN(const std::string affix, model.String(key, ""));
    if (!affix.empty()) return model.Unsupported(absl::StrCat(key, " \"", affix, "\""));
  }

  // Read ids and merges first, because the settings below refer to tokens.
  Bpe bpe;
  bpe.byte_level_ = byte_level;
  if (!file.has_vocab) return model.Invalid("vocab is missing or not an object");
  if (!file.has_merges) return model.Invalid("merges is missing or not a list");
  SLUICE_RETURN_IF_ERROR(bpe.ReadVocab(&file));
  SLUICE_RETURN_IF_ERROR(bpe.ReadMerges(file));
  SLUICE_ASSIGN_OR_RETURN(bpe.fuse_unknown_, model.Bool("fuse_unk", false));
  SLUICE_ASSIGN_OR_RETURN(bpe.byte_fallback_, model.Bool("byte_fallback", false));
  if (byte_level && bpe.byte_fallback_)
    return model.Unsupported("byte_fallback behind a ByteLevel pre-tokenizer");
  SLUICE_ASSIGN_OR_RETURN(bpe.ignore_merges_, model.Bool("ignore_merges", false));
  if (model.Has("unk_token")) {
    SLUICE_ASSIGN_OR_RETURN(const std::string unknown, model.String("unk_token"));
    bpe.unknown_ = bpe.Id(unknown);
    if (!bpe.unknown_)
      return model.Invalid(absl::StrCat("unk_token \"", unknown, "\" is not in the vocabulary"));
  }

  // Find the token of each single byte.
  for (int b = 0; b < 256; ++b) {
    const std::string spelling =
        byte_level ? ByteLevelAlphabet::Get().Spell(std::string(1, static_cast<char>(b)))
                   : absl::StrFormat("<0x%02X>", b);
    bpe.byte_ids_[b] = bpe.Id(spelling).value_or(-1);
  }
  bpe.DecideCuts();
  return bpe;
}

absl::Status Bpe::ReadVocab(TokenizerFile* file) {
  int32_t highest = -1;
  for (const auto& [token, id] : file->vocab) highest = std::max(highest, id);
  tokens_.resize(highest + 1);
  ids_.reserve(file->vocab.size());
  for (auto& [token, id] : file->vocab) {
    if (token.empty()) continue;  // No text contains it, and decoding gives nothing for it.
    if (!tokens_[id].empty())
      return absl::InvalidArgumentError(absl::StrCat("model.vocab: \"", token, "\" and \"",
                                                     tokens_[id], "\" both have the id ", id));
    tokens_[id] = std::move(token);
    if (!ids_.try_emplace(tokens_[id], id).second)
      return absl::InvalidArgumentError(
          absl::StrCat("model.vocab has \"", tokens_[id], "\" twice"));
  }
  return absl::OkStatus();
}

absl::Status Bpe::ReadMerges(const TokenizerFile& file) {
  merges_.reserve(file.merges.size());
  for (size_t rank = 0; rank < file.merges.size(); ++rank) {
    const auto& [a, b] = file.merges[rank];
    const auto left = Id(a), right = Id(b), whole = Id(absl::StrCat(a, b));
    if (!left || !right || !whole) {
      return absl::InvalidArgumentError(
          absl::StrCat("model.merges[", rank, "]: \"", a, "\", \"", b,
                       "\" or the two together are not in the vocabulary"));
    }
    // If a pair occurs twice, the last one counts.
    merges_[PairKey(*left, *right)] = {static_cast<uint32_t>(rank), *whole};
    joined_.set(JoinIndex(a.back(), b.front()));
  }
  return absl::OkStatus();
}

void Bpe::DecideCuts() {
  all_bytes_ = byte_fallback_ && absl::c_all_of(byte_ids_, [](int32_t id) { return id >= 0; });
  // Without an unknown token, an unknown character disappears, and its neighbours meet. Then a cut
  // is not safe.
  may_cut_ = !byte_level_ && !ignore_merges_ && (all_bytes_ || unknown_);
  if (!may_cut_) return;
  // These tokens stand for other text than their spelling, so `joined_` does not cover merges with
  // them.
  absl::flat_hash_set<int32_t> others;
  if (byte_fallback_) others.insert(byte_ids_.begin(), byte_ids_.end());
  if (unknown_) others.insert(*unknown_);
  for (const auto& [pair, merge] : merges_) {
    if (others.contains(static_cast<int32_t>(pair >> 32)) ||
        others.contains(static_cast<int32_t>(pair & 0xFFFFFFFFu)))
      may_cut_ = false;
  }
}

std::optional<int32_t> Bpe::Id(absl::string_view token) const {
  const auto it = ids_.find(token);
  return it == ids_.end() ? std::nullopt : std::optional<int32_t>(it->second);
}

size_t Bpe::CutAt(absl::string_view word) const {
  if (!may_cut_) return word.size();
  for (size_t at = 1; at < word.size(); ++at) {
    const bool inside = (static_cast<uint8_t>(word[at]) & 0xC0) == 0x80;  // Inside a character.
    if (inside || joined_[JoinIndex(word[at - 1], word[at])]) continue;
    // An unknown character is emitted together with what follows it, so a cut is safe only before a
    // known one.
    if (all_bytes_ || Id(word.substr(at, Utf8SequenceLength(word[at])))) return at;
  }
  return word.size();
}

void Bpe::AppendSymbols(absl::string_view word, Symbols* symbols) const {
  // Bytes of an unknown symbol that is not emitted yet. The next known character emits it; byte
  // tokens do not.
  uint32_t unknown_bytes = 0;
  const auto emit_unknown = [&] {
    if (unknown_bytes > 0) symbols->push_back({*unknown_, unknown_bytes});
    unknown_bytes = 0;
  };
  while (!word.empty()) {
    const absl::string_view character =
        word.substr(0, byte_level_ ? 1 : Utf8SequenceLength(word[0]));
    word.remove_prefix(character.size());
    const int32_t id =
        byte_level_ ? byte_ids_[static_cast<uint8_t>(character[0])] : Id(character).value_or(-1);
    if (id >= 0) {
      emit_unknown();
      symbols->push_back({id, static_cast<uint32_t>(character.size())});
      continue;
    }
    bool fallback = byte_fallback_;
    for (const char c : character) fallback = fallback && byte_ids_[static_cast<uint8_t>(c)] >= 0;
    if (fallback) {
      for (const char c : character) symbols->push_back({byte_ids_[static_cast<uint8_t>(c)], 1});
      continue;
    }
    if (!unknown_) continue;
    if (!fuse_unknown_) emit_unknown();
    unknown_bytes += static_cast<uint32_t>(character.size());
  }
  emit_unknown();
}

void Bpe::Encode(absl::string_view word, Symbols* symbols) const {
  symbols->clear();
  // With ignore_merges, a word that is a token as a whole is not split.
  if (ignore_merges_) {
    const auto id = byte_level_ ? Id(ByteLevelAlphabet::Get().Spell(word)) : Id(word);
    if (id) {
      symbols->push_back({*id, static_cast<uint32_t>(word.size())});
      return;
    }
  }

  AppendSymbols(word, symbols);
  if (symbols->size() <= kFew) {
    MergeFew(symbols);
  } else {
    MergeMany(symbols);
  }
}

const Bpe::Merge* Bpe::FindMerge(const Symbol& left, const Symbol& right) const {
  const auto it = merges_.find(PairKey(left.id, right.id));
  return it == merges_.end() ? nullptr : &it->second;
}

void Bpe::MergeFew(Symbols* symbols) const {
  constexpr Merge kNone{UINT32_MAX, -1};
  Merge merge[kFew];  // [i]: the merge of symbol i with the next one.
  size_t n = symbols->size();
  Symbol* const s = symbols->data();
  const auto update_merge = [&](size_t i) {
    const Merge* const found = i + 1 < n ? FindMerge(s[i], s[i + 1]) : nullptr;
    merge[i] = found != nullptr ? *found : kNone;
  };
  for (size_t i = 0; i < n; ++i) update_merge(i);
  // Merge the best pair until none is left.
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (merge[i].rank < merge[best].rank) best = i;
    }
    if (merge[best].id < 0) break;
    s[best] = {merge[best].id, s[best].bytes + s[best + 1].bytes};
    std::copy(s + best + 2, s + n, s + best + 1);
    std::copy(merge + best + 2, merge + n, merge + best + 1);
    --n;
    update_merge(best);
    if (best > 0) update_merge(best - 1);
  }
  symbols->resize(n);
}

void Bpe::MergeMany(Symbols* symbols) const {
  const int n = static_cast<int>(symbols->size());
  Symbol* const s = symbols->data();
  // The symbols form a linked list, so that merging is constant time.
  std::vector<int> next(n), previous(n);
  for (int i = 0; i < n; ++i) {
    next[i] = i + 1 < n ? i + 1 : -1;
    previous[i] = i - 1;
  }

  struct Candidate {
    uint32_t rank;
    int at;  // Index of the left symbol.
    int32_t left, right, id;
    bool operator>(const Candidate& o) const { return rank != o.rank ? rank > o.rank : at > o.at; }
  };
  std::vector<Candidate> first;
  const auto candidate = [&](int at, auto&& use) {
    if (at < 0 || next[at] < 0) return;
    if (const Merge* const merge = FindMerge(s[at], s[next[at]]))
      use(Candidate{merge->rank, at, s[at].id, s[next[at]].id, merge->id});
  };
  for (int i = 0; i + 1 < n; ++i) candidate(i, [&](const Candidate& c) { first.push_back(c); });
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue(std::greater<>(),
                                                                               std::move(first));
  const auto offer = [&](int at) { candidate(at, [&](const Candidate& c) { queue.push(c); }); };
  constexpr int32_t kMerged = -1;

  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    // Skip the candidate if one of the two symbols was merged after it was queued.
    if (s[top.at].id != top.left || next[top.at] < 0 || s[next[top.at]].id != top.right) continue;
    const int right = next[top.at];
    s[top.at] = {top.id, s[top.at].bytes + s[right].bytes};
    s[right].id = kMerged;
    next[top.at] = next[right];
    if (next[right] >= 0) previous[next[right]] = top.at;
    offer(previous[top.at]);
    offer(top.at);
  }

  size_t kept = 0;
  for (int i = 0; i >= 0 && i < n; i = next[i]) s[kept++] = s[i];
  symbols->resize(kept);
}

}  // namespace sluice
