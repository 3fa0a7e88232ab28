#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/tokenizer/component.h"

namespace sluice {

// The keys of Metaspace, pre-tokenizer and decoder: spaces become `replacement`, and one goes in
// front of a text.
struct Metaspace {
  // kFirst: to the piece at the start of the whole text only.
  enum Prepend { kNever, kFirst, kAlways };
  std::string replacement;
  Prepend prepend = kAlways;
  bool split = true;

  static absl::StatusOr<Metaspace> Parse(const Component& component);
};

}  // namespace sluice
