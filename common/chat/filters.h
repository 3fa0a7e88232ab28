#pragma once

#include "absl/types/span.h"
#include "common/chat/function.h"

// The filters are listed by family; FindFilter() searches all of them.
namespace sluice::chat {

absl::Span<const Function> TextFilters();
absl::Span<const Function> NumberFilters();
absl::Span<const Function> SequenceFilters();
// Filters that take an attribute, a filter or a test.
absl::Span<const Function> SelectionFilters();

// Returns the value at a dotted path of attributes, as in `map(attribute="a.b")`; `otherwise` if it
// is undefined.
Value ReadPath(const Call& call, const Value& value, const Value& path,
               const Value& otherwise = Value());

}  // namespace sluice::chat
