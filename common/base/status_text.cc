#include "common/base/status_text.h"

#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"

namespace sluice {

std::string StatusText(const absl::Status& status) {
  const ErrorDetail detail = DetailOf(status);
  std::vector<std::string> notes;
  if (!detail.catalogue.empty()) notes.push_back(detail.catalogue);
  // An empty hint is contained in every message, so it adds no note.
  if (!absl::StrContains(status.message(), detail.hint))
    notes.push_back(absl::StrCat("hint: ", detail.hint));

  return absl::StrCat(status.message(),
                      notes.empty() ? "" : absl::StrCat(" (", absl::StrJoin(notes, "; "), ")"));
}

}  // namespace sluice
