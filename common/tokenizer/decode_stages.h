#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/tokenizer/decoder.h"

namespace sluice {

// Returns the byte of a token of the form <0xAB>; -1 if it has another form.
int FallbackByte(absl::string_view token);

// A stage that needs the whole token: collects its pieces and calls HandleToken().
class WholeTokenStage : public DecodeStage {
 public:
  void Feed(absl::string_view piece, bool ends) final;
  void Finish() override;

 protected:
  virtual void HandleToken(absl::string_view token) = 0;

 private:
  std::string gathered_;  // The pieces of the current token.
  bool open_ = false;     // Whether a token has begun and not ended.
};

// Treats all tokens in a row as one text. Bytes that are not UTF-8 become U+FFFD. Holds back an
// incomplete UTF-8 sequence.
class ByteLevelStage : public DecodeStage {
 public:
  explicit ByteLevelStage(bool spelled) : spelled_(spelled) {}
  void Feed(absl::string_view piece, bool ends) override;
  void Finish() override;

 private:
  void FeedBytes(absl::string_view bytes);
  // Tokens are spelled in the byte-level alphabet; false: they are bytes already.
  const bool spelled_;
  std::string token_;    // The incomplete token, if spelled_.
  std::string pending_;  // An incomplete sequence: at most 3 bytes.
};

// Replaces the matches of a pattern in each token.
class ReplaceStage : public WholeTokenStage {
 public:
  ReplaceStage(const Pattern* pattern, std::string content)
      : pattern_(pattern), content_(std::move(content)) {}

 private:
  void HandleToken(absl::string_view token) override;
  const Pattern* const pattern_;
  const std::string content_;
};

// A run of tokens <0x00>..<0xFF> becomes one token if its bytes are UTF-8; else each of them
// becomes U+FFFD. This is only known when the run ends.
class ByteFallbackStage : public WholeTokenStage {
 public:
  void Finish() override;

 private:
  void HandleToken(absl::string_view token) override;
  void Flush();
  std::string run_;
};

// Makes one token of all tokens.
class FuseStage : public DecodeStage {
 public:
  void Feed(absl::string_view piece, bool ends) override { next->Feed(piece, false); }
  void Finish() override {
    next->Feed("", true);
    next->Finish();
  }
};

// Removes the character up to `start` times from the start of each token, and up to `stop` times
// from its end.
class StripStage : public DecodeStage {
 public:
  StripStage(std::string character, int start, int stop)
      : character_(std::move(character)), start_(start), stop_(stop) {}
  void Feed(absl::string_view piece, bool ends) override;
  void Finish() override { next->Finish(); }

 private:
  const std::string character_;
  const int start_, stop_;
  int taken_ = 0;  // Characters removed from the start of this token.
  bool at_start_ = true;
  int held_ = 0;  // Characters at its end that may have to be removed; at most stop_.
};

// Replaces the Metaspace character by a space; in the first token, removes it.
class MetaspaceStage : public WholeTokenStage {
 public:
  MetaspaceStage(std::string character, bool drops_first)
      : character_(std::move(character)), dropping_(drops_first) {}

 private:
  void HandleToken(absl::string_view token) override;
  const std::string character_;
  bool dropping_;  // True until the first token has passed.
};

// Puts a space between tokens.
class JoinStage : public WholeTokenStage {
 private:
  void HandleToken(absl::string_view token) override;
  bool first_ = true;
};

// The end of the chain: appends to a string.
class OutStage : public DecodeStage {
 public:
  explicit OutStage(std::string* out) : out_(out) {}
  void Feed(absl::string_view piece, bool ends) override {
    out_->append(piece.data(), piece.size());
  }
  void Finish() override {}

 private:
  std::string* const out_;
};

}  // namespace sluice
