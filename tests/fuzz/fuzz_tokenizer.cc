// Fuzzes the tokenizer with hostile files, texts and ids.
//
// Input: a byte that says what the rest is:
//   0  a tokenizer.json
//   1  a text for each of the built-in tokenizers
//   2  ids (u16 each) for the built-in tokenizers, with stop strings
//   3  a pattern, a NUL, and a text
#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/detokenizer.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"
#include "tests/fuzz/target.h"

namespace sluice::fuzz {
namespace {

using nlohmann::json;

json AddedTokenJson(int id, const char* content, bool special, bool normalized, bool single_word,
                    bool lstrip, bool rstrip) {
  return {{"id", id},
          {"content", content},
          {"special", special},
          {"normalized", normalized},
          {"single_word", single_word},
          {"lstrip", lstrip},
          {"rstrip", rstrip}};
}

// A file with the byte-level alphabet, a few merges, and an added token of each kind.
json ByteLevelFile(json normalizer, json pre_tokenizer) {
  json vocab = json::object();
  for (int b = 0; b < 256; ++b)
    vocab[ByteLevelAlphabet::Get().Spell(std::string(1, static_cast<char>(b)))] = b;
  json merges = json::array();
  for (const auto& [left, right] :
       {std::make_pair("h", "e"), std::make_pair("l", "l"), std::make_pair("he", "ll"),
        std::make_pair("Ġ", "a"), std::make_pair("Ġ", "Ġ")}) {
    vocab[absl::StrCat(left, right)] = 256 + merges.size();
    merges.push_back({left, right});
  }
  const int next = static_cast<int>(vocab.size());

  return {{"added_tokens",
           {AddedTokenJson(next, "<s>", true, false, false, false, false),
            AddedTokenJson(next + 1, "ab", false, true, true, false, false),
            AddedTokenJson(next + 2, "<m>", true, false, false, true, true)}},
          {"normalizer", std::move(normalizer)},
          {"pre_tokenizer", std::move(pre_tokenizer)},
          {"post_processor",
           {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", true}}},
          {"decoder", {{"type", "ByteLevel"}}},
          {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", merges}}}};
}

// A tokenizer.json as it is made from a SentencePiece model, with byte fallback.
json FallbackFile() {
  json vocab = {{"<unk>", 256}, {"<s>", 257}, {"▁", 258},  {"a", 259},
                {"b", 260},     {"▁a", 261},  {"ab", 262}, {"é", 263}};
  for (int b = 0; b < 256; ++b)
    vocab[absl::StrCat("<0x", absl::AsciiStrToUpper(absl::StrCat(absl::Hex(b, absl::kZeroPad2))),
                       ">")] = b;
  const json decoders = {{{"type", "Replace"}, {"pattern", {{"String", "▁"}}}, {"content", " "}},
                         {{"type", "ByteFallback"}},
                         {{"type", "Fuse"}},
                         {{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 1}}};

  return {
      {"added_tokens", {AddedTokenJson(257, "<s>", true, false, false, false, false)}},
      {"normalizer",
       {{"type", "Sequence"},
        {"normalizers",
         {{{"type", "NFKC"}}, {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}}}}}},
      {"pre_tokenizer",
       {{"type", "Metaspace"}, {"replacement", "▁"}, {"prepend_scheme", "first"}, {"split", true}}},
      {"post_processor",
       {{"type", "TemplateProcessing"},
        {"single",
         {{{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}},
          {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
        {"special_tokens", {{"<s>", {{"id", "<s>"}, {"ids", {257}}, {"tokens", {"<s>"}}}}}}}},
      {"decoder", {{"type", "Sequence"}, {"decoders", decoders}}},
      {"model",
       {{"type", "BPE"},
        {"unk_token", "<unk>"},
        {"fuse_unk", true},
        {"byte_fallback", true},
        {"vocab", vocab},
        {"merges", {"▁ a", "a b"}}}}};
}

std::vector<std::string> MakeFiles() {
  const json gpt2 = {{"type", "ByteLevel"},
                     {"add_prefix_space", false},
                     {"trim_offsets", true},
                     {"use_regex", true}};
  const json split = {{"type", "Split"},
                      {"pattern", {{"Regex", R"((?i:'s)|\w+|\b\s|[^\s\p{L}]{1,3})"}}},
                      {"behavior", "MergedWithNext"},
                      {"invert", false}};
  const json chain = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Digits"}, {"individual_digits", false}},
        split,
        {{"type", "ByteLevel"}, {"add_prefix_space", true}, {"use_regex", false}}}}};

  const json forms = {{"type", "Sequence"},
                      {"normalizers",
                       {{{"type", "NFD"}},
                        {{"type", "Lowercase"}},
                        {{"type", "NFC"}},
                        {{"type", "Prepend"}, {"prepend", "a "}}}}};

  return {ByteLevelFile(nullptr, gpt2).dump(), ByteLevelFile(forms, chain).dump(),
          FallbackFile().dump()};
}

struct Loaded {
  std::unique_ptr<Tokenizer> tokenizer;
  bool round_trips;  // Whether decoding returns the text.
};
const std::vector<Loaded>& Tokenizers() {
  static const auto* const loaded = [] {
    auto* const list = new std::vector<Loaded>;
    for (const std::string& file : MakeFiles()) {
      auto tokenizer = Tokenizer::Parse(file);
      SLUICE_CHECK_MSG(tokenizer.ok(), tokenizer.status().ToString());
      list->push_back({*std::move(tokenizer), list->empty()});
    }
    return list;
  }();

  return *loaded;
}

void CheckIds(const Tokenizer& tokenizer, const std::vector<int32_t>& ids, bool skip,
              std::vector<std::string> stops) {
  const std::string whole = tokenizer.Decode(ids, skip);
  SLUICE_CHECK(IsUtf8(whole));
  const bool has_stops = !stops.empty();
  auto detokenizer =
      Detokenizer::Create(&tokenizer, {.skip_special = skip, .stops = std::move(stops)});
  SLUICE_CHECK(detokenizer.ok());
  std::string text;
  for (const int32_t id : ids) (*detokenizer)->Push(id, &text);
  const bool stopped = (*detokenizer)->Finish(&text);
  SLUICE_CHECK(stopped ? has_stops && absl::StartsWith(whole, text) : text == whole);
}

void CheckText(const Tokenizer& tokenizer, bool round_trips, absl::string_view text) {
  for (const bool special : {true, false}) {
    const Tokenizer::EncodeOptions options{.add_special = special, .parse_special = special};
    const auto ids = tokenizer.Encode(text, options);
    const auto with_offsets = tokenizer.EncodeWithOffsets(text, options);
    SLUICE_CHECK(ids.ok() == with_offsets.ok());
    SLUICE_CHECK(ids.ok() || !IsUtf8(text) || absl::IsResourceExhausted(ids.status()) ||
                 absl::IsInvalidArgument(ids.status()));

    if (!ids.ok()) continue;
    SLUICE_CHECK(*ids == with_offsets->ids && ids->size() == with_offsets->offsets.size());
    for (const Span& span : with_offsets->offsets)
      SLUICE_CHECK(span.begin <= span.end && span.end <= text.size());
    CheckIds(tokenizer, *ids, special, {});
    if (round_trips && !special) SLUICE_CHECK(tokenizer.Decode(*ids, false) == text);
  }
}

void CheckPattern(absl::string_view input) {
  const size_t nul = input.find('\0');
  const auto pattern = Pattern::Regex(input.substr(0, nul));
  const std::string text = Utf8Lossy(nul == absl::string_view::npos ? "" : input.substr(nul + 1));
  std::vector<Span> matches;
  if (!pattern.ok() || !(*pattern)->Find(text, &matches).ok()) return;
  size_t done = 0;

  for (const Span& match : matches) {
    SLUICE_CHECK(match.begin >= done && match.begin <= match.end && match.end <= text.size());
    done = match.end;
  }
}

}  // namespace

void Run(absl::string_view input) {
  if (input.empty()) return;
  const char kind = input[0];
  input.remove_prefix(1);
  if (kind == 0) {
    const auto tokenizer = Tokenizer::Parse(input);
    if (tokenizer.ok()) CheckText(**tokenizer, false, "hello  <s>ab \xC3\xA9 12!\n");
  } else if (kind == 1) {
    for (const Loaded& loaded : Tokenizers())
      CheckText(*loaded.tokenizer, loaded.round_trips, input);
  } else if (kind == 2) {
    std::vector<int32_t> ids;
    for (size_t i = 1; i + 1 < input.size(); i += 2)
      ids.push_back(
          (static_cast<uint8_t>(input[i]) | static_cast<uint8_t>(input[i + 1]) << 8) % 300 - 2);

    for (const Loaded& loaded : Tokenizers()) {
      CheckIds(*loaded.tokenizer, ids, !input.empty() && (input[0] & 1) != 0, {});
      CheckIds(*loaded.tokenizer, ids, true, {" ", "aba", "\xEF\xBF\xBD\xEF\xBF\xBD"});
    }
  } else if (kind == 3) {
    CheckPattern(input);
  }
}

std::vector<std::string> Seeds() {
  std::vector<std::string> seeds;
  for (const std::string& file : MakeFiles()) seeds.push_back(std::string(1, 0) + file);
  for (const char* const text :
       {"hello  world's 123\n\n <s> ab <m> x",
        "e\xCC\x81\xE1\x84\x80\xE1\x85\xA1\xEF\xAC\x81 \xE2\x96\x81\xF0\x9F\x98\x80", "   \t\r\n"})
    seeds.push_back(absl::StrCat("\1", text));
  seeds.push_back(std::string("\2\0\x61\0\xC3\0\xA9\0\xF0\0\x9F\0\x05\x01", 14));
  for (const char* const pattern :
       {R"(\s+(?!\S)|[^\s\p{L}]+)", "(a|b)*c", R"((?<=x)\b\p{Lu}{2,3})"})
    seeds.push_back(absl::StrCat("\3", pattern) + std::string(1, 0) + "xAB aabac  !");

  return seeds;
}

}  // namespace sluice::fuzz
