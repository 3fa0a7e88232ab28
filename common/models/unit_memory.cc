#include "common/models/unit_memory.h"

#include "absl/strings/numbers.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace sluice {

int64_t UnitOf(absl::string_view name) {
  int64_t layer = 0;
  if (!absl::ConsumePrefix(&name, "model.layers.")) return 0;
  SLUICE_CHECK(absl::SimpleAtoi(name.substr(0, name.find('.')), &layer));
  return layer + 1;
}

}  // namespace sluice
