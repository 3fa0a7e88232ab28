#include "common/base/status_text.h"

#include <gtest/gtest.h>

#include "common/base/status.h"

namespace sluice {
namespace {

TEST(StatusText, HasTheNextStepAndTheCatalogueCodeOnce) {
  const auto text = [](ErrorDetail detail, absl::string_view message) {
    return StatusText(ErrorWith(absl::StatusCode::kFailedPrecondition, std::move(detail), message));
  };

  EXPECT_EQ(text({.catalogue = "SLUICE-X-0001", .hint = "try y"}, "no x"),
            "no x (SLUICE-X-0001; hint: try y)");
  EXPECT_EQ(text({.hint = "try y"}, "no x"), "no x (hint: try y)");
  EXPECT_EQ(text({.hint = "try y"}, "no x; try y"), "no x; try y");
  EXPECT_EQ(text({.reason = "X"}, "no x"), "no x");
  EXPECT_EQ(StatusText(absl::InternalError("no x")), "no x");
}

}  // namespace
}  // namespace sluice
