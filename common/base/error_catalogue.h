#pragma once

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace sluice {

// What a number of an error, SLUICE-AREA-NNNN, means. A number is never used for another meaning.
struct CatalogueRow {
  const char* code;     // "SLUICE-QUEUE-0004"
  const char* meaning;  // One sentence.
  const char* cause;    // How it comes about.
  const char* action;   // What a person should do.
  // The same call may succeed later although nobody does anything.
  bool retryable;
};

// All numbers, ordered. A number in the sources without a row fails
// tests/common/base/error_catalogue_test.cc, as does a row that no source uses.
absl::Span<const CatalogueRow> ErrorCatalogue();

// The row of `code`, which may be written in any case and without "SLUICE-", as in "queue-4". Null:
// there is none.
const CatalogueRow* FindError(absl::string_view code);

// The codes that are most like `code`, at most five: those of its area that begin with the same
// digits, else a code that may have been mistyped.
std::vector<std::string> FindSimilarErrors(absl::string_view code);

}  // namespace sluice
