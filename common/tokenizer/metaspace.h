#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/tokenizer/component.h"

namespace sluice {

// The settings of Metaspace, as a pre-tokenizer or a decoder: spaces become `replacement`, and one
// is put in front of a text.
struct Metaspace {
  // kFirst: only in front of the piece at the start of the whole text.
  enum Prepend { kNever, kFirst, kAlways };
  std::string replacement;
  Prepend prepend = kAlways;
  // Whether each word begins at a replacement character.
  bool split = true;

  static absl::StatusOr<Metaspace> Parse(const Component& component);
};

}  // namespace sluice
