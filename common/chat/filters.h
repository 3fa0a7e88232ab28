#pragma once

#include "absl/types/span.h"
#include "common/chat/function.h"

// The filters by family; FindFilter looks through all.
namespace sluice::chat {

absl::Span<const Function> TextFilters();
absl::Span<const Function> NumberFilters();
absl::Span<const Function> SequenceFilters();
absl::Span<const Function> SelectionFilters();  // Those that take an attribute, a filter or a test.

// The value of a dotted attribute path, as `map(attribute="a.b")` reads it; `otherwise` where it is
// undefined.
Value ReadPath(const Call& call, const Value& value, const Value& path,
               const Value& otherwise = Value());

}  // namespace sluice::chat
