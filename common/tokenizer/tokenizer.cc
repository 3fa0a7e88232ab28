#include "common/tokenizer/tokenizer.h"

#include <algorithm>
#include <atomic>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/tokenizer/added_tokens.h"
#include "common/tokenizer/bpe.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/char_class.h"
#include "common/tokenizer/normalizer.h"
#include "common/tokenizer/post_processor.h"
#include "common/tokenizer/pre_tokenizer.h"
#include "common/tokenizer/tokenizer_file.h"
#include "common/tokenizer/word_cache.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

// Counts the spaces at the ends of a token in the vocabulary's spelling. U+0120 is the space of the
// byte-level alphabet.
TokenSpans::Spaces SpacesOf(absl::string_view token) {
  const auto space = [&](size_t at) {
    const uint32_t c = DecodeUtf8(&token[at]);
    return c == 0x120 || CharTable::Get().Mask(c) == kSpaceMask;
  };
  TokenSpans::Spaces spaces;
  for (size_t at = 0; at < token.size() && space(at); at += Utf8SequenceLength(token[at]))
    ++spaces.leading;
  for (size_t end = token.size(); end > 0;) {
    do --end;
    while ((static_cast<uint8_t>(token[end]) & 0xC0) == 0x80);
    if (!space(end)) break;
    ++spaces.trailing;
  }
  return spaces;
}

// Returns, for each byte of the spelling of `word` in the byte-level alphabet, the index of the
// byte of `word` that it stands for.
std::vector<size_t> SpelledBytes(absl::string_view word) {
  std::vector<size_t> bytes;
  for (size_t i = 0; i < word.size(); ++i)
    bytes.resize(bytes.size() + ByteLevelAlphabet::Get().Spell(word.substr(i, 1)).size(), i);
  return bytes;
}

}  // namespace

class Tokenizer::Impl {
 public:
  absl::Status Read(TokenizerFile file);
  absl::StatusOr<std::vector<int32_t>> Encode(absl::string_view text,
                                              const EncodeOptions& options) const;
  absl::StatusOr<Encoding> EncodeWithOffsets(absl::string_view text,
                                             const EncodeOptions& options) const;
  std::optional<absl::string_view> Piece(int32_t id, bool skip_special) const;

  std::optional<Bpe> bpe;
  AddedTokens added;
  Decoder decoder;
  int32_t vocab_size = 0;

 private:
  // Where tokens are appended: the ids alone, or with offsets.
  struct Sink {
    std::vector<int32_t>* ids;
    TokenSpans* spans;  // Null: only ids. Else its ids are *ids.
    WordCache* words;   // Null if `spans` is set, because the cache holds no offsets.
  };
  absl::Status EncodeText(absl::string_view text, const EncodeOptions& options,
                          const Sink& sink) const;
  absl::Status EncodePlain(absl::string_view text, size_t begin, bool special,
                           const Sink& sink) const;
  absl::Status EncodeWords(AlignedText* text, Span part, const Sink& sink) const;
  void EncodeWord(absl::string_view word, std::vector<int32_t>* ids, WordCache* words) const;
  void EncodeWordWithOffsets(const AlignedText& text, Span word, TokenSpans* spans) const;
  void AppendAdded(const AddedToken& token, absl::string_view written, Span origin,
                   const Sink& sink) const;
  absl::Status PreparePieces();

  Normalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  PostProcessor post_processor_;
  std::vector<std::string> pieces_;  // By id; prepared for the decoder.
  uint64_t number_ = 0;              // Number of this tokenizer in this process.
};

absl::Status Tokenizer::Impl::Read(TokenizerFile file) {
  const std::unique_ptr<nlohmann::json> rest = std::move(file.rest);
  const Component root(*rest, "");
  SLUICE_RETURN_IF_ERROR(
      root.CheckKeys({"version", "truncation", "padding", "added_tokens", "normalizer",
                      "pre_tokenizer", "post_processor", "decoder", "model"}));
  SLUICE_ASSIGN_OR_RETURN(const std::string version, root.String("version", "1.0"));
  if (version != "1.0")
    return absl::UnimplementedError(
        absl::StrCat("version \"", version, "\" is not supported; want \"1.0\""));

  // Both would change the ids of a text.
  for (const char* const key : {"truncation", "padding"}) {
    if (root.Has(key))
      return absl::UnimplementedError(absl::StrCat(key, " other than null is not supported"));
  }

  SLUICE_ASSIGN_OR_RETURN(const Component model, root.Object("model"));
  // The parts of the chain are optional.
  const auto parse = [&](const char* key, auto* part) -> absl::Status {
    if (!root.Has(key)) return absl::OkStatus();
    SLUICE_ASSIGN_OR_RETURN(const Component component, root.Object(key));
    SLUICE_ASSIGN_OR_RETURN(*part, std::remove_pointer_t<decltype(part)>::Parse(component));
    return absl::OkStatus();
  };
  SLUICE_RETURN_IF_ERROR(parse("normalizer", &normalizer_));
  SLUICE_RETURN_IF_ERROR(parse("pre_tokenizer", &pre_tokenizer_));
  SLUICE_RETURN_IF_ERROR(parse("post_processor", &post_processor_));
  SLUICE_RETURN_IF_ERROR(parse("decoder", &decoder));

  SLUICE_ASSIGN_OR_RETURN(bpe, Bpe::Create(model, std::move(file), pre_tokenizer_.byte_level()));
  SLUICE_ASSIGN_OR_RETURN(added, AddedTokens::Parse(root, *bpe, normalizer_));
  vocab_size = std::max(static_cast<int32_t>(bpe->tokens().size()), added.id_end());
  static std::atomic<uint64_t> count{0};
  number_ = ++count;
  return PreparePieces();
}

absl::Status Tokenizer::Impl::PreparePieces() {
  pieces_.resize(vocab_size);
  for (int32_t id = 0; id < vocab_size; ++id) {
    const AddedToken* const token = added.FindById(id);
    if (token == nullptr && !bpe->Has(id)) continue;
    SLUICE_ASSIGN_OR_RETURN(
        pieces_[id],
        decoder.Prepare(token != nullptr ? absl::string_view(token->form) : bpe->tokens()[id]));
  }
  return absl::OkStatus();
}

void Tokenizer::Impl::EncodeWord(absl::string_view word, std::vector<int32_t>* ids,
                                 WordCache* words) const {
  WordCache::Slot* slot = nullptr;
  if (WordCache::Fits(word)) {
    slot = &words->At(word);
    if (WordCache::Holds(*slot, word)) {
      ids->insert(ids->end(), slot->ids, slot->ids + slot->count);
      return;
    }
  }
  Bpe::Symbols symbols;
  bpe->Encode(word, &symbols);
  for (const Bpe::Symbol& symbol : symbols) ids->push_back(symbol.id);
  if (slot != nullptr) WordCache::Put(word, symbols, slot);
}

void Tokenizer::Impl::EncodeWordWithOffsets(const AlignedText& text, Span word,
                                            TokenSpans* spans) const {
  const absl::string_view bytes = text.text().substr(word.begin, word.size());
  Bpe::Symbols symbols;
  bpe->Encode(bytes, &symbols);
  size_t given = 0;
  for (const Bpe::Symbol& symbol : symbols) given += symbol.bytes;
  // As in the reference library, a byte of the word that gives no token is not counted, so the
  // tokens after it get offsets that are too small. The reference library counts these offsets in
  // the spelling of the word, so that is done here too.
  const std::vector<size_t> spelled =
      bpe->byte_level() && given < bytes.size() ? SpelledBytes(bytes) : std::vector<size_t>();

  size_t at = 0;
  for (const Bpe::Symbol& symbol : symbols) {
    const absl::string_view token = bpe->tokens()[symbol.id];
    const size_t size = spelled.empty() ? symbol.bytes : token.size(), end = at + size;
    const Span part = spelled.empty() ? Span{at, end} : Span{spelled[at], spelled[end - 1] + 1};
    spans->ids.push_back(symbol.id);
    spans->offsets.push_back(text.Origin({word.begin + part.begin, word.begin + part.end}));
    spans->spaces.push_back(SpacesOf(token));
    at = end;
  }
}

absl::Status Tokenizer::Impl::EncodeWords(AlignedText* text, Span part, const Sink& sink) const {
  // The fast way: the scanner gives the words, and no list of them is made.
  if (const Scanner scanner = pre_tokenizer_.scanner();
      scanner != nullptr && sink.spans == nullptr) {
    const absl::string_view view = text->text().substr(part.begin, part.size());
    for (size_t at = 0; at < view.size();) {
      const size_t end = scanner(view, at).end;
      EncodeWord(view.substr(at, end - at), sink.ids, sink.words);
      at = end;
    }
    return absl::OkStatus();
  }

  std::vector<Span> words;
  SLUICE_RETURN_IF_ERROR(pre_tokenizer_.Run(text, part, &words));
  for (Span word : words) {
    // Cut long words where that is safe, so that their parts can be cached.
    while (word.size() > 0) {
      const size_t cut = bpe->CutAt(text->text().substr(word.begin, word.size()));
      const Span piece{word.begin, word.begin + cut};
      if (sink.spans != nullptr) {
        EncodeWordWithOffsets(*text, piece, sink.spans);
      } else {
        EncodeWord(text->text().substr(piece.begin, cut), sink.ids, sink.words);
      }
      word.begin = piece.end;
    }
  }
  return absl::OkStatus();
}

void Tokenizer::Impl::AppendAdded(const AddedToken& token, absl::string_view written, Span origin,
                                  const Sink& sink) const {
  sink.ids->push_back(token.id);
  if (sink.spans == nullptr) return;
  sink.spans->offsets.push_back(origin);
  sink.spans->spaces.push_back(SpacesOf(written));
}

absl::Status Tokenizer::Impl::EncodePlain(absl::string_view text, size_t begin, bool special,
                                          const Sink& sink) const {
  AlignedText normalized(text, begin, /*track=*/sink.spans != nullptr ||
                                          pre_tokenizer_.needs_origin(!normalizer_.empty()));
  SLUICE_RETURN_IF_ERROR(normalizer_.Run(&normalized));
  if (!added.HasNormalized()) return EncodeWords(&normalized, {0, normalized.text().size()}, sink);
  std::vector<AddedTokens::Piece> pieces;
  added.Find(normalized.text(), /*normalized=*/true, special, &pieces);
  for (const AddedTokens::Piece& piece : pieces) {
    if (piece.token != nullptr) {
      AppendAdded(*piece.token, normalized.text().substr(piece.span.begin, piece.span.size()),
                  normalized.Origin(piece.span), sink);
    } else {
      // The pre-tokenizer may rewrite this part; the other pieces need the text unchanged.
      AlignedText part(normalized, piece.span);
      SLUICE_RETURN_IF_ERROR(EncodeWords(&part, {0, part.text().size()}, sink));
    }
  }
  return absl::OkStatus();
}

absl::Status Tokenizer::Impl::EncodeText(absl::string_view text, const EncodeOptions& options,
                                         const Sink& sink) const {
  if (text.size() > kMaxText)
    return absl::InvalidArgumentError(
        absl::StrCat("the text has ", text.size(), " bytes; the limit is ", kMaxText));
  if (!IsUtf8(text)) return absl::InvalidArgumentError("the text is not UTF-8");
  std::vector<AddedTokens::Piece> pieces;
  added.Find(text, /*normalized=*/false, options.parse_special, &pieces);
  for (const AddedTokens::Piece& piece : pieces) {
    const absl::string_view written = text.substr(piece.span.begin, piece.span.size());
    if (piece.token != nullptr) {
      AppendAdded(*piece.token, written, piece.span, sink);
    } else {
      SLUICE_RETURN_IF_ERROR(EncodePlain(written, piece.span.begin, options.parse_special, sink));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Impl::Encode(absl::string_view text,
                                                             const EncodeOptions& options) const {
  std::vector<int32_t> ids;
  ids.reserve(text.size() / 3 + 8);
  if (options.add_special) ids = post_processor_.before();
  SLUICE_RETURN_IF_ERROR(EncodeText(
      text, options, {.ids = &ids, .spans = nullptr, .words = &WordCache::ForThread(number_)}));
  if (options.add_special)
    ids.insert(ids.end(), post_processor_.after().begin(), post_processor_.after().end());
  return ids;
}

absl::StatusOr<Tokenizer::Encoding> Tokenizer::Impl::EncodeWithOffsets(
    absl::string_view text, const EncodeOptions& options) const {
  TokenSpans spans;
  SLUICE_RETURN_IF_ERROR(
      EncodeText(text, options, {.ids = &spans.ids, .spans = &spans, .words = nullptr}));
  post_processor_.Run(text, options.add_special, &spans);
  return Encoding{.ids = std::move(spans.ids), .offsets = std::move(spans.offsets)};
}

std::optional<absl::string_view> Tokenizer::Impl::Piece(int32_t id, bool skip_special) const {
  if (id < 0 || id >= vocab_size) return std::nullopt;
  const AddedToken* const token = added.FindById(id);
  if (token == nullptr && !bpe->Has(id)) return std::nullopt;
  // As in the reference library, a special token that the normalizer changes is no longer
  // recognised as special.
  if (token != nullptr && skip_special && token->special && token->form == token->content)
    return std::nullopt;
  return pieces_[id];
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Parse(absl::string_view json) {
  SLUICE_ASSIGN_OR_RETURN(TokenizerFile file, TokenizerFile::Parse(json));
  auto impl = std::make_unique<Impl>();
  SLUICE_RETURN_IF_ERROR(impl->Read(std::move(file)));
  return std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Load(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const std::string json, ReadFile(path, TokenizerFile::kMaxBytes));
  auto tokenizer = Parse(json);
  if (!tokenizer.ok()) return Annotate(tokenizer.status(), path);
  return tokenizer;
}

absl::StatusOr<std::vector<int32_t>> Tokenizer::Encode(absl::string_view text,
                                                       const EncodeOptions& options) const {
  return impl_->Encode(text, options);
}
absl::StatusOr<Tokenizer::Encoding> Tokenizer::EncodeWithOffsets(
    absl::string_view text, const EncodeOptions& options) const {
  return impl_->EncodeWithOffsets(text, options);
}
std::string Tokenizer::Decode(absl::Span<const int32_t> ids, bool skip_special) const {
  std::string text;
  Decoder::Stream stream(&impl_->decoder, &text);
  for (const int32_t id : ids) {
    if (const auto piece = impl_->Piece(id, skip_special)) stream.Feed(*piece);
  }
  stream.Finish();
  return text;
}
std::string Tokenizer::TokenBytes(int32_t id) const {
  const auto piece = impl_->Piece(id, /*skip_special=*/false);
  return piece ? impl_->decoder.Bytes(*piece) : "";
}
std::optional<int32_t> Tokenizer::TokenId(absl::string_view token) const {
  if (const AddedToken* const added = impl_->added.FindByContent(token)) return added->id;
  return impl_->bpe->Id(token);
}
std::optional<absl::string_view> Tokenizer::Piece(int32_t id, bool skip_special) const {
  return impl_->Piece(id, skip_special);
}
const Decoder& Tokenizer::decoder() const { return impl_->decoder; }
int32_t Tokenizer::vocab_size() const { return impl_->vocab_size; }

}  // namespace sluice
