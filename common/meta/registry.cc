#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/status.h"
#include "common/meta/sqlite.h"
#include "common/meta/store.h"

namespace sluice::meta {

const std::vector<Kind>& Kinds() {
  static const auto* const kinds = new std::vector<Kind>{
      {"sqlite", "a file of this machine: sqlite:DIR/meta.db", &OpenSqlite},
  };
  return *kinds;
}

absl::StatusOr<std::unique_ptr<Store>> Open(absl::string_view url) {
  const size_t colon = url.find(':');
  const absl::string_view name = url.substr(0, colon);
  for (const Kind& kind : Kinds()) {
    if (name == kind.name && colon != absl::string_view::npos)
      return kind.open(std::string(url.substr(colon + 1)));
  }

  const std::string known = absl::StrJoin(Kinds(), "; ", [](std::string* out, const Kind& kind) {
    absl::StrAppend(out, kind.name, " (", kind.doc, ")");
  });
  return ErrorWith(absl::StatusCode::kInvalidArgument,
                   {"STORE", "SLUICE-META-0001", "write it as sqlite:FILE"},
                   absl::StrCat("\"", url, "\" names no job store; this build has ", known));
}

}  // namespace sluice::meta
