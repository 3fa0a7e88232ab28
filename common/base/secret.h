#pragma once

#include <string>
#include <utility>

#include "absl/strings/string_view.h"

namespace sluice {

// A password, a private key, or another text that nobody may see. It does not convert to other
// texts and has no printer, so it cannot get into a message, a log or a metric by mistake. Its
// memory is overwritten at the end.
class Secret {
 public:
  Secret() = default;
  // `text` is overwritten.
  explicit Secret(std::string&& text) : text_(text) { Wipe(&text); }
  Secret(const Secret&) = default;
  Secret(Secret&& other) noexcept : text_(other.text_) { other.Clear(); }
  Secret& operator=(Secret other) noexcept {
    text_.swap(other.text_);
    return *this;
  }
  ~Secret() { Wipe(&text_); }

  bool empty() const { return text_.empty(); }
  void Clear() {
    Wipe(&text_);
    text_.clear();
  }

  // The text, for the function that needs it. Do not keep a copy.
  const std::string& Reveal() const { return text_; }

 private:
  // Overwrites all bytes of the text, and what is left of a former, longer one.
  static void Wipe(std::string* text);

  std::string text_;
};

}  // namespace sluice
