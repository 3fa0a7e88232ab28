#include "common/tokenizer/tokenizer.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/pattern.h"
#include "common/tokenizer/utf8.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;
constexpr uint64_t kMaxFile = 64 << 20;

absl::Status Unsupported(absl::string_view where, absl::string_view what) {
  return absl::UnimplementedError(absl::StrCat(where, ": ", what, " is not supported by this build"));
}
std::string TypeOf(const Json& component) { return component.is_object() ? component.value("type", "") : ""; }
bool Absent(const Json& root, const char* key) { return !root.contains(key) || root[key].is_null(); }

// {"String": "x"} of a Replace or Split.
absl::StatusOr<std::string> StringPattern(const Json& component, absl::string_view where) {
  if (!component.contains("pattern") || !component["pattern"].is_object()) return absl::InvalidArgumentError(absl::StrCat(where, ".pattern is missing"));
  if (!component["pattern"].contains("String")) return Unsupported(where, "a pattern that is a regular expression");
  return component["pattern"]["String"].get<std::string>();
}

struct Normalize {
  enum Kind { kPrepend, kReplace } kind;
  std::string from, to;  // kPrepend: `to` goes in front of a text that is not empty.
};

struct AddedToken {
  std::string content;
  int32_t id = 0;
  bool special = false;
};

}  // namespace

class Tokenizer::Impl {
 public:
  absl::Status Read(const Json& root);
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text, const EncodeOptions& options) const;
  std::string Decode(absl::Span<const int32_t> ids, bool skip_special) const;
  std::optional<absl::string_view> Piece(int32_t id, bool skip_special) const;

  absl::optional<Bpe> bpe;
  std::vector<AddedToken> added;                         // Longest content first.
  absl::flat_hash_map<int32_t, const AddedToken*> added_by_id;
  int32_t vocab_size = 0;
  Decoder decoder;
  std::vector<std::string> pieces;  // By id: prepared for the decoder.

 private:
  absl::Status ReadNormalizer(const Json& component, const std::string& where);
  absl::Status ReadPreTokenizer(const Json& component, const std::string& where);
  absl::Status ReadPostProcessor(const Json& component);
  absl::Status PreparePieces();
  absl::Status ReadAdded(const Json& list);
  absl::Status EncodePlain(absl::string_view text, std::vector<int32_t>* ids) const;

  std::vector<Normalize> normalizers_;
  std::vector<std::unique_ptr<const Pattern>> splits_;
  bool byte_level_ = false;
  std::vector<int32_t> before_, after_;  // Around every text, with add_special.
};

absl::Status Tokenizer::Impl::Read(const Json& root) {
  if (!root.is_object() || !root.contains("model") || !root["model"].is_object()) return absl::InvalidArgumentError("there is no object `model`");
  SLUICE_ASSIGN_OR_RETURN(bpe, Bpe::Parse(root["model"]));
  vocab_size = static_cast<int32_t>(bpe->tokens().size());
  if (!Absent(root, "added_tokens")) SLUICE_RETURN_IF_ERROR(ReadAdded(root["added_tokens"]));
  if (!Absent(root, "normalizer")) SLUICE_RETURN_IF_ERROR(ReadNormalizer(root["normalizer"], "normalizer"));
  if (!Absent(root, "pre_tokenizer")) SLUICE_RETURN_IF_ERROR(ReadPreTokenizer(root["pre_tokenizer"], "pre_tokenizer"));
  if (!Absent(root, "post_processor")) SLUICE_RETURN_IF_ERROR(ReadPostProcessor(root["post_processor"]));
  if (!Absent(root, "decoder")) {
    const nlohmann::json chain = root["decoder"];
    if (!chain.is_object()) return absl::InvalidArgumentError("decoder is no object");
    SLUICE_ASSIGN_OR_RETURN(decoder, Decoder::Parse(Component(chain, "decoder")));
  }
  SLUICE_RETURN_IF_ERROR(PreparePieces());
  for (const char* const key : {"truncation", "padding"}) {
    if (!Absent(root, key)) return Unsupported(key, "a value other than null");
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::ReadAdded(const Json& list) {
  for (const Json& entry : list) {
    AddedToken token{.content = entry.value("content", ""), .id = entry.value("id", -1), .special = entry.value("special", false)};
    const std::string where = absl::StrCat("added token \"", token.content, "\"");
    if (token.content.empty() || token.id < 0) return absl::InvalidArgumentError(absl::StrCat(where, " lacks content or id"));
    for (const char* const flag : {"single_word", "lstrip", "rstrip", "normalized"}) {
      if (entry.value(flag, false)) return Unsupported(where, absl::StrCat(flag, ": true"));
    }
    vocab_size = std::max(vocab_size, token.id + 1);
    added.push_back(std::move(token));
  }
  std::stable_sort(added.begin(), added.end(), [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
  for (const AddedToken& token : added) added_by_id[token.id] = &token;
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::ReadNormalizer(const Json& component, const std::string& where) {
  const std::string type = TypeOf(component);
  if (type == "Sequence") {
    int i = 0;
    for (const Json& part : component["normalizers"]) SLUICE_RETURN_IF_ERROR(ReadNormalizer(part, absl::StrCat(where, "[", i++, "]")));
    return absl::OkStatus();
  }
  if (type == "Prepend") {
    normalizers_.push_back({Normalize::kPrepend, "", component.value("prepend", "")});
    return absl::OkStatus();
  }
  if (type == "Replace") {
    SLUICE_ASSIGN_OR_RETURN(std::string from, StringPattern(component, where));
    if (from.empty()) return absl::InvalidArgumentError(absl::StrCat(where, ": an empty pattern"));
    normalizers_.push_back({Normalize::kReplace, std::move(from), component.value("content", "")});
    return absl::OkStatus();
  }
  return Unsupported(where, absl::StrCat("type \"", type, "\""));
}

absl::Status Tokenizer::Impl::ReadPreTokenizer(const Json& component, const std::string& where) {
  const std::string type = TypeOf(component);
  if (type == "Sequence") {
    int i = 0;
    for (const Json& part : component["pretokenizers"]) SLUICE_RETURN_IF_ERROR(ReadPreTokenizer(part, absl::StrCat(where, "[", i++, "]")));
    return absl::OkStatus();
  }
  if (byte_level_) return Unsupported(where, "a component behind ByteLevel");
  if (type == "ByteLevel") {
    if (component.value("add_prefix_space", true)) return Unsupported(where, "add_prefix_space: true");
    if (component.value("use_regex", true)) return Unsupported(where, "use_regex: true");
    byte_level_ = true;
    return absl::OkStatus();
  }
  if (type == "Split") {
    if (component.value("behavior", "") != "Isolated") return Unsupported(where, absl::StrCat("behavior \"", component.value("behavior", ""), "\""));
    if (component.value("invert", false)) return Unsupported(where, "invert: true");
    const Json pattern = component.value("pattern", Json::object());
    if (!pattern.contains("Regex")) return Unsupported(where, "a pattern that is no regular expression");
    auto split = Pattern::Regex(pattern["Regex"].get<std::string>());
    if (!split.ok()) return Annotate(split.status(), where);
    splits_.push_back(*std::move(split));
    return absl::OkStatus();
  }
  return Unsupported(where, absl::StrCat("type \"", type, "\""));
}

absl::Status Tokenizer::Impl::ReadPostProcessor(const Json& component) {
  const std::string type = TypeOf(component);
  if (type == "ByteLevel") return absl::OkStatus();  // It only trims offsets.
  if (type != "TemplateProcessing") return Unsupported("post_processor", absl::StrCat("type \"", type, "\""));
  bool seen = false;
  for (const Json& item : component["single"]) {
    if (item.contains("Sequence")) {
      if (seen) return Unsupported("post_processor.single", "a text that appears twice");
      seen = true;
      continue;
    }
    const std::string name = item["SpecialToken"]["id"].get<std::string>();
    for (const Json& id : component["special_tokens"][name]["ids"]) (seen ? after_ : before_).push_back(id.get<int32_t>());
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::PreparePieces() {
  pieces.resize(vocab_size);
  for (int32_t id = 0; id < vocab_size; ++id) {
    const auto it = added_by_id.find(id);
    if (it == added_by_id.end() && static_cast<size_t>(id) >= bpe->tokens().size()) continue;
    SLUICE_ASSIGN_OR_RETURN(pieces[id], decoder.Prepare(it != added_by_id.end() ? it->second->content : bpe->tokens()[id]));
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::EncodePlain(absl::string_view text, std::vector<int32_t>* ids) const {
  if (text.empty()) return absl::OkStatus();
  std::string normalized(text);
  for (const Normalize& step : normalizers_) {
    if (step.kind == Normalize::kPrepend) {
      normalized = step.to + normalized;
    } else {
      normalized = absl::StrReplaceAll(normalized, {{step.from, step.to}});
    }
  }
  std::vector<absl::string_view> words = {normalized};
  for (const auto& split : splits_) {
    std::vector<absl::string_view> pieces;
    for (const absl::string_view word : words) {
      std::vector<Span> matches;
      SLUICE_RETURN_IF_ERROR(split->Find(word, &matches));
      size_t done = 0;
      for (const Span& match : matches) {
        if (match.begin > done) pieces.push_back(word.substr(done, match.begin - done));
        if (match.size() > 0) pieces.push_back(word.substr(match.begin, match.size()));
        done = match.end;
      }
      if (done < word.size()) pieces.push_back(word.substr(done));
    }
    words = std::move(pieces);
  }
  for (const absl::string_view word : words) {
    if (byte_level_) {
      SLUICE_RETURN_IF_ERROR(bpe->EncodeWord(ByteLevelAlphabet::Get().Spell(word), ids));
    } else {
      SLUICE_RETURN_IF_ERROR(bpe->EncodeWord(word, ids));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Impl::Encode(absl::string_view text, const EncodeOptions& options) const {
  if (!IsUtf8(text)) return absl::InvalidArgumentError("the text is not UTF-8");
  std::vector<int32_t> ids;
  if (options.add_special) ids = before_;
  size_t plain = 0;  // Where the text since the last added token begins.
  for (size_t i = 0; options.parse_special && i < text.size();) {
    const auto it = std::find_if(added.begin(), added.end(), [&](const AddedToken& token) { return absl::StartsWith(text.substr(i), token.content); });
    if (it == added.end()) {
      ++i;
      continue;
    }
    SLUICE_RETURN_IF_ERROR(EncodePlain(text.substr(plain, i - plain), &ids));
    ids.push_back(it->id);
    i += it->content.size();
    plain = i;
  }
  SLUICE_RETURN_IF_ERROR(EncodePlain(text.substr(plain), &ids));
  if (options.add_special) ids.insert(ids.end(), after_.begin(), after_.end());
  return ids;
}

std::string Tokenizer::Impl::Decode(absl::Span<const int32_t> ids, bool skip_special) const {
  std::string text;
  Decoder::Stream stream(&decoder, &text);
  for (const int32_t id : ids) {
    if (const auto piece = Piece(id, skip_special)) stream.Feed(*piece);
  }
  stream.Finish();
  return text;
}

std::optional<absl::string_view> Tokenizer::Impl::Piece(int32_t id, bool skip_special) const {
  if (id < 0 || id >= vocab_size) return std::nullopt;
  const auto it = added_by_id.find(id);
  if (it != added_by_id.end() && skip_special && it->second->special) return std::nullopt;
  return pieces[id];
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(absl::string_view json) {
  auto impl = std::make_unique<Impl>();
  try {  // nlohmann throws for bad syntax and for values of the wrong type.
    SLUICE_RETURN_IF_ERROR(impl->Read(Json::parse(json.begin(), json.end())));
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(error.what());
  }
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string json, ReadFile(path, kMaxFile));
  auto tokenizer = Parse(json);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), path);
  return tokenizer;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text, const EncodeOptions& options) const { return impl_->Encode(text, options); }
std::string Tokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special) const { return impl_->Decode(ids, skip_special); }
std::optional<int32_t> Tokenizer::TokenId(absl::string_view token) const {
  for (const AddedToken& added : impl_->added) {
    if (added.content == token) return added.id;
  }
  return impl_->bpe->Id(token);
}
std::optional<absl::string_view> Tokenizer::Piece(int32_t id, bool skip_special) const { return impl_->Piece(id, skip_special); }
const Decoder& Tokenizer::decoder() const { return impl_->decoder; }
int32_t Tokenizer::vocab_size() const { return impl_->vocab_size; }

}  // namespace sluice
