#pragma once

#include <string>

#include "absl/strings/string_view.h"
#include "common/tokenizer/decoder.h"

namespace sluice {

// The byte that a token of the form <0xAB> stands for; -1: it is no such token.
int FallbackByte(absl::string_view token);

// A stage that needs a whole token before it can say anything: gathers its pieces.
class WholeTokenStage : public DecodeStage {
 public:
  void Feed(absl::string_view piece, bool ends) final;
  void Finish() override;

 protected:
  virtual void Token(absl::string_view token) = 0;

 private:
  std::string gathered_;
  bool open_ = false;
};

// All tokens' bytes in a row are one token; parts that are no UTF-8 become U+FFFD. Holds back a
// sequence that is not complete.
class ByteLevelStage : public DecodeStage {
 public:
  explicit ByteLevelStage(bool spelled) : spelled_(spelled) {}
  void Feed(absl::string_view piece, bool ends) override;
  void Finish() override;

 private:
  void Bytes(absl::string_view bytes);
  const bool spelled_;   // In the byte-level alphabet; false: these are the bytes already.
  std::string token_;    // Of a token not complete, if spelled_.
  std::string pending_;  // At most 3 bytes.
};

class ReplaceStage : public WholeTokenStage {
 public:
  ReplaceStage(const Pattern* pattern, std::string content)
      : pattern_(pattern), content_(std::move(content)) {}

 private:
  void Token(absl::string_view token) override;
  const Pattern* const pattern_;
  const std::string content_;
};

// A run of tokens <0x00>..<0xFF> is one token if its bytes are UTF-8, else each of them is a
// U+FFFD: known when the run ends.
class ByteFallbackStage : public WholeTokenStage {
 public:
  void Finish() override;

 private:
  void Token(absl::string_view token) override;
  void Flush();
  std::string run_;
};

class FuseStage : public DecodeStage {
 public:
  void Feed(absl::string_view piece, bool ends) override { next->Feed(piece, false); }
  void Finish() override {
    next->Feed("", true);
    next->Finish();
  }
};

// Takes up to `start` times the character off each token's start and up to `stop` times off its
// end.
class StripStage : public DecodeStage {
 public:
  StripStage(std::string character, int start, int stop)
      : character_(std::move(character)), start_(start), stop_(stop) {}
  void Feed(absl::string_view piece, bool ends) override;
  void Finish() override { next->Finish(); }

 private:
  const std::string character_;
  const int start_, stop_;
  int taken_ = 0;  // Off the start of this token.
  bool at_start_ = true;
  int held_ = 0;  // Characters at its end that may have to go; at most stop_.
};

class MetaspaceStage : public WholeTokenStage {
 public:
  MetaspaceStage(std::string character, bool drops_first)
      : character_(std::move(character)), dropping_(drops_first) {}

 private:
  void Token(absl::string_view token) override;
  const std::string character_;
  bool dropping_;  // Until the first token is through.
};

class JoinStage : public WholeTokenStage {
 private:
  void Token(absl::string_view token) override;
  bool first_ = true;
};

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
