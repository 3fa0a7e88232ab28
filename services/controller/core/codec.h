#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "services/controller/core/fleet.h"
#include "services/controller/core/job.h"
#include "services/controller/core/types.h"

namespace sluice::controller {

// Encodes and decodes what the store holds, as JSON text: fields by name, times in microseconds
// since 1970, durations in microseconds (-1: infinite). A field that is missing gets its default,
// so a newer build reads what an older one wrote. Values of a step that are not finite are left
// out.
std::string Encode(const JobRecord& record);
std::string Encode(const AssignRecord& record);
std::string Encode(const DaemonRecord& record);
std::string Encode(const Event& event);
std::string Encode(const StepReport& step);
std::string Encode(const Result& result);

// DATA_LOSS: `text` is not such a record; the message names `key`.
template <typename T>
absl::StatusOr<T> Decode(absl::string_view key, absl::string_view text);

// The keys of the store.
std::string NameKey(absl::string_view name);
// `part` is spec, hash, status or result, or the folder events/ or steps/.
std::string JobKey(absl::string_view job, absl::string_view part);
std::string EventKey(absl::string_view job, uint64_t seq);
std::string StepKey(absl::string_view job, int64_t k);
std::string AssignKey(absl::string_view job);
std::string DaemonKey(absl::string_view daemon);
std::string FloorKey();  // Of Fleet::floor(), in decimal. Missing until a daemon is forgotten.

}  // namespace sluice::controller
