#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/meta/store.h"
#include "services/controller/core/controller.h"
#include "sluice/job/v1/job.pb.h"

namespace sluice {
struct Policy;
}

// The verbs of JobService.Control.
namespace sluice::controller {

struct Person;

// The verb's name for people, "Cancel".
std::string VerbName(job::v1::Verb verb);

// UNIMPLEMENTED NOT_BUILT: this build does not serve the verb, or a field that is set.
// INVALID_ARGUMENT: there is no such verb.
absl::Status CheckControl(const job::v1::ControlRequest& request);

// Does what a checked request asks of `job`, which is the person's. Returns whether it was a
// repeat. Call it on the loop's thread; `store` is only read.
absl::StatusOr<bool> DoVerb(Controller& core, Instant now, meta::Store& store, const Policy& policy,
                            const Person& person, const Job& job,
                            const job::v1::ControlRequest& request);

}  // namespace sluice::controller
