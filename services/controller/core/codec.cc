#include "services/controller/core/codec.h"

#include <cmath>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <type_traits>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/base/utf8.h"

namespace nlohmann {
template <>
struct adl_serializer<absl::Time> {
  static void to_json(json& j, const absl::Time& time) {
    j = time == absl::InfiniteFuture() ? int64_t{-1} : absl::ToUnixMicros(time);
  }
  static void from_json(const json& j, absl::Time& time) {
    const auto micros = j.get<int64_t>();
    time = micros == -1 ? absl::InfiniteFuture() : absl::FromUnixMicros(micros);
  }
};
template <>
struct adl_serializer<absl::Duration> {
  static void to_json(json& j, const absl::Duration& duration) {
    j = duration == absl::InfiniteDuration() ? int64_t{-1} : absl::ToInt64Microseconds(duration);
  }
  static void from_json(const json& j, absl::Duration& duration) {
    const auto micros = j.get<int64_t>();
    duration = micros == -1 ? absl::InfiniteDuration() : absl::Microseconds(micros);
  }
};
template <typename T>
struct adl_serializer<std::optional<T>> {
  static void to_json(json& j, const std::optional<T>& value) { value ? j = *value : j = nullptr; }
  static void from_json(const json& j, std::optional<T>& value) {
    value = j.is_null() ? std::nullopt : std::optional(j.get<T>());
  }
};
}  // namespace nlohmann

namespace sluice {
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(PolicyVersion, incarnation, number)
}  // namespace sluice

namespace sluice::controller {

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Event, seq, at, incarnation, severity, role, daemon,
                                                code, message, count)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(StepReport, k, version, at, values, staleness)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Ledger, accepted, durable, applied, live, dropped,
                                                tokens_generated, tokens_trained, tokens_masked,
                                                durable_version, hash, event)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(EvalSummary, versions, first, last, best,
                                                best_version, best_checkpoint)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(CurvePoint, first_step, last_step, reward, loss)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Result, job, state, steps, seconds, reward_first,
                                                reward_last, tokens_generated, tokens_trained,
                                                staleness_max, staleness_histogram, ledger,
                                                restarts, checkpoint, curve, best, worst, warnings,
                                                eval)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Count, min, max)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Needs, priority, trainers, rollouts, rewards, wall,
                                                start, stall_warn, stall_fail, restarts_per_hour,
                                                pool)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(Worker, id, role, incarnation, leaving)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(FoldedSteps, tokens, staleness)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(TrainerGroup, incarnation, trainers, first_step,
                                                reported_k)
NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(JobRecord, id, name, hash, request, order, created,
                                                needs, state, code, message, conditions,
                                                running_since, ended, target, stage,
                                                stop_checkpoint, step, version, groups, last_event,
                                                restarts, restarted, ledger, ledger_final,
                                                checkpoint, told_findings, folded, eval, owner,
                                                paused, retried, since, limited)

// These functions are written out, because stored records have keys of an earlier build, which are
// not the names of the fields: gang and gang_whole.
void to_json(nlohmann::json& json, const AssignRecord& record) {
  json = {{"gang", record.trainer_incarnation},
          {"gang_whole", record.trainers_complete},
          {"revision", record.revision},
          {"phase", record.phase},
          {"opened", record.opened},
          {"queue", record.queue},
          {"queue_incarnation", record.queue_incarnation},
          {"queue_lost_job", record.queue_lost_job},
          {"workers", record.workers}};
}
void from_json(const nlohmann::json& json, AssignRecord& record) {
  const AssignRecord unset;
  record.trainer_incarnation = json.value("gang", unset.trainer_incarnation);
  record.trainers_complete = json.value("gang_whole", unset.trainers_complete);
  record.revision = json.value("revision", unset.revision);
  record.phase = json.value("phase", unset.phase);
  record.opened = json.value("opened", unset.opened);
  record.queue = json.value("queue", unset.queue);
  record.queue_incarnation = json.value("queue_incarnation", unset.queue_incarnation);
  record.queue_lost_job = json.value("queue_lost_job", unset.queue_lost_job);
  record.workers = json.value("workers", unset.workers);
}

NLOHMANN_DEFINE_TYPE_NON_INTRUSIVE_WITH_DEFAULT(DaemonRecord, id, role, boot, incarnation, build,
                                                protocol_min, protocol_max, addresses, labels,
                                                capacity, events_stored, drained, left,
                                                unknown_jobs)

namespace {
// Text from daemons may contain bytes that are not UTF-8; they are replaced.
template <typename T>
std::string Dump(const T& value) {
  return nlohmann::json(value).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}
}  // namespace

std::string Encode(const JobRecord& record) { return Dump(record); }
std::string Encode(const AssignRecord& record) { return Dump(record); }
std::string Encode(const DaemonRecord& record) { return Dump(record); }
std::string Encode(const Event& event) { return Dump(event); }
std::string Encode(const Result& result) { return Dump(result); }
std::string Encode(const StepReport& step) {
  StepReport finite = step;
  for (auto it = finite.values.begin(); it != finite.values.end();) {
    it = std::isfinite(it->second) ? std::next(it) : finite.values.erase(it);
  }
  return Dump(finite);
}

template <typename T>
absl::StatusOr<T> Decode(absl::string_view key, absl::string_view text) {
  try {
    // Utf8Lossy() is needed because the parser refuses a whole record for one byte that is not
    // UTF-8, and a stored message may have such a byte.
    return nlohmann::json::parse(Utf8Lossy(text)).get<T>();
  } catch (const nlohmann::json::exception& error) {
    return ErrorWith(absl::StatusCode::kDataLoss,
                     {"STORE_DAMAGED", "SLUICE-META-0003",
                      "put the store back from a copy, or move it away to start empty"},
                     absl::StrCat("the job store's ", key, ": ", error.what()));
  }
}
template absl::StatusOr<JobRecord> Decode(absl::string_view, absl::string_view);
template absl::StatusOr<AssignRecord> Decode(absl::string_view, absl::string_view);
template absl::StatusOr<DaemonRecord> Decode(absl::string_view, absl::string_view);
template absl::StatusOr<Event> Decode(absl::string_view, absl::string_view);
template absl::StatusOr<StepReport> Decode(absl::string_view, absl::string_view);
template absl::StatusOr<Result> Decode(absl::string_view, absl::string_view);

std::string NameKey(absl::string_view name) { return absl::StrCat("names/", name); }
std::string JobKey(absl::string_view job, absl::string_view part) {
  return absl::StrCat("jobs/", job, "/", part);
}
std::string EventKey(absl::string_view job, uint64_t seq) {
  return absl::StrFormat("jobs/%s/events/%012d", job, seq);
}
std::string StepKey(absl::string_view job, int64_t k) {
  return absl::StrFormat("jobs/%s/steps/%012d", job, k);
}
std::string AssignKey(absl::string_view job) { return absl::StrCat("assign/", job); }
std::string DaemonKey(absl::string_view daemon) { return absl::StrCat("daemons/", daemon); }
std::string FloorKey() { return "fleet/floor"; }

}  // namespace sluice::controller
