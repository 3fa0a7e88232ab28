#include "common/tokenizer/added_tokens.h"

#include <unicode/uchar.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/tokenizer/char_class.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

// Whether `c` is a word character as in \w: Alphabetic, M, Nd, Pc, or a joiner.
bool IsWord(uint32_t c) {
  const UChar32 u = static_cast<UChar32>(c);
  // The table also has characters that are newer than ICU's Unicode version.
  if ((CharTable::Get().Mask(c) & (kLetterMask | kMarkMask)) != 0) return true;
  return u_hasBinaryProperty(u, UCHAR_ALPHABETIC) || u_hasBinaryProperty(u, UCHAR_JOIN_CONTROL) ||
         (U_MASK(u_charType(u)) & (U_GC_M_MASK | U_GC_ND_MASK | U_GC_PC_MASK)) != 0;
}
bool EndsWithWord(absl::string_view text) {
  if (text.empty()) return false;
  size_t last = text.size() - 1;
  while ((static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
  return IsWord(DecodeUtf8(&text[last]));
}
bool StartsWithWord(absl::string_view text) {
  return !text.empty() && IsWord(DecodeUtf8(text.data()));
}

absl::StatusOr<std::unique_ptr<AddedToken>> ReadToken(const Component& entry,
                                                      const Normalizer& normalizer) {
  SLUICE_RETURN_IF_ERROR(entry.CheckKeys(
      {"id", "content", "special", "normalized", "single_word", "lstrip", "rstrip"}));
  auto token = std::make_unique<AddedToken>();
  SLUICE_ASSIGN_OR_RETURN(token->content, entry.String("content"));
  if (token->content.empty() || token->content.size() > AddedTokens::kMaxContent) {
    return entry.Invalid(absl::StrCat("content has ", token->content.size(), " bytes; want 1 to ",
                                      AddedTokens::kMaxContent));
  }
  SLUICE_ASSIGN_OR_RETURN(token->id, entry.Int("id", 0, TokenizerFile::kMaxId));
  for (const auto& [key, flag] :
       {std::make_pair("special", &token->special),
        std::make_pair("normalized", &token->normalized),
        std::make_pair("single_word", &token->single_word),
        std::make_pair("lstrip", &token->lstrip), std::make_pair("rstrip", &token->rstrip)}) {
    SLUICE_ASSIGN_OR_RETURN(*flag, entry.Bool(key));
  }
  AlignedText form(token->content, 0, false);
  if (token->normalized) SLUICE_RETURN_IF_ERROR(normalizer.Run(&form));
  token->form = std::string(form.text());
  return token;
}

}  // namespace

absl::StatusOr<AddedTokens> AddedTokens::Parse(const Component& root, const Bpe& bpe,
                                               const Normalizer& normalizer) {
  AddedTokens added;
  if (!root.Has("added_tokens")) return added;
  const nlohmann::json& list = root.json()["added_tokens"];
  if (!list.is_array() || list.size() > kMaxTokens)
    return absl::InvalidArgumentError(
        absl::StrCat("added_tokens is not a list of at most ", kMaxTokens, " entries"));

  // Tokens that are not in the model get the ids after it, in the order of the list.
  int32_t next_id = static_cast<int32_t>(bpe.size());
  for (size_t i = 0; i < list.size(); ++i) {
    if (!list[i].is_object())
      return absl::InvalidArgumentError(absl::StrCat("added_tokens[", i, "] is not an object"));
    const Component entry(list[i], absl::StrCat("added_tokens[", i, "]"));
    SLUICE_ASSIGN_OR_RETURN(std::unique_ptr<const AddedToken> token, ReadToken(entry, normalizer));
    if (added.by_content_.contains(token->content))
      return entry.Invalid(absl::StrCat("\"", token->content, "\" occurs twice"));
    const auto in_model = bpe.Id(token->content);
    const int32_t want = in_model ? *in_model : next_id++;
    if (token->id != want) {
      return entry.Invalid(
          absl::StrCat("\"", token->content, "\" has the id ", token->id, ", but ",
                       in_model ? "the model's token has " : "the next free id is ", want));
    }
    added.by_id_[token->id] = added.by_content_[token->content] = token.get();
    added.id_end_ = std::max(added.id_end_, token->id + 1);
    added.tokens_.push_back(std::move(token));
  }

  std::vector<const AddedToken*> raw, normalized;
  for (const auto& token : added.tokens_) {
    if (!token->form.empty()) (token->normalized ? normalized : raw).push_back(token.get());
  }
  added.raw_.Build(std::move(raw));
  added.normalized_.Build(std::move(normalized));
  return added;
}

void AddedTokens::Index::Build(std::vector<const AddedToken*> list) {
  tokens = std::move(list);
  std::sort(tokens.begin(), tokens.end(),
            [](const AddedToken* a, const AddedToken* b) { return a->form < b->form; });
  for (const AddedToken* const token : tokens) begins[static_cast<uint8_t>(token->form[0])] = true;
}

const AddedToken* AddedTokens::Index::LongestAt(absl::string_view text) const {
  const AddedToken* longest = nullptr;
  // The tokens whose forms begin with the first `depth` bytes of `text`.
  auto low = tokens.begin(), high = tokens.end();
  for (size_t depth = 0; depth < text.size() && low != high; ++depth) {
    const uint8_t byte = static_cast<uint8_t>(text[depth]);
    const auto at = [depth](const AddedToken* token) {
      return depth < token->form.size() ? static_cast<uint8_t>(token->form[depth]) : -1;
    };
    low =
        std::partition_point(low, high, [&](const AddedToken* token) { return at(token) < byte; });
    high =
        std::partition_point(low, high, [&](const AddedToken* token) { return at(token) == byte; });
    if (low != high && (*low)->form.size() == depth + 1) longest = *low;
  }
  return longest;
}

void AddedTokens::Find(absl::string_view text, bool normalized, bool special,
                       std::vector<Piece>* pieces) const {
  const Index& index = normalized ? normalized_ : raw_;
  size_t done = 0;
  for (size_t at = 0; at < text.size() && !index.tokens.empty();) {
    if (!index.begins[static_cast<uint8_t>(text[at])]) {
      ++at;
      continue;
    }
    const AddedToken* const token = index.LongestAt(text.substr(at));
    if (token == nullptr) {
      ++at;
      continue;
    }

    size_t begin = at, end = at + token->form.size();
    // A match that is rejected below still hides what it covers, as in the reference library.
    at = end;
    if (token->special && !special) continue;
    if (token->single_word &&
        (EndsWithWord(text.substr(0, begin)) || StartsWithWord(text.substr(end))))
      continue;
    if (token->lstrip) begin = std::max(StripSpaces(text.substr(0, begin), false, true).end, done);
    if (token->rstrip) end += StripSpaces(text.substr(end), true, false).begin;
    if (done < begin) pieces->push_back({{done, begin}, nullptr});
    pieces->push_back({{begin, end}, token});
    done = end;
  }
  if (done != text.size()) pieces->push_back({{done, text.size()}, nullptr});
}

const AddedToken* AddedTokens::FindById(int32_t id) const {
  const auto it = by_id_.find(id);
  return it == by_id_.end() ? nullptr : it->second;
}
const AddedToken* AddedTokens::FindByContent(absl::string_view content) const {
  const auto it = by_content_.find(content);
  return it == by_content_.end() ? nullptr : it->second;
}

}  // namespace sluice
