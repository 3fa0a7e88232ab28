#include "services/queue/core/parked_calls.h"

#include <algorithm>

namespace sluice::queue {
namespace {
constexpr absl::Duration kLongestWait = absl::Seconds(30);
}  // namespace

void ParkedCalls::Add(uint64_t call, const Caller& caller, absl::Duration wait, Input input,
                      Instant now) {
  wait = std::clamp(wait, absl::ZeroDuration(), kLongestWait);
  calls_.push_back({.call = call,
                    .caller = caller,
                    .since = now,
                    .deadline = now + wait,
                    .input = std::move(input)});
}

bool ParkedCalls::IsSameRequest(const Call& call, const Caller& caller, const Input& input) {
  if (call.caller.worker != caller.worker || call.input.index() != input.index()) return false;
  if (const auto* admit = std::get_if<Admit>(&input))
    return std::get<Admit>(call.input).request == admit->request;
  if (const auto* tasks = std::get_if<LeaseTasks>(&input))
    return std::get<LeaseTasks>(call.input).request == tasks->request;

  // AcquireBatch has no request id: the ranks of one trainer may ask for the same batch.
  return false;
}

bool ParkedCalls::WaitsForBatch(int64_t k) const {
  return std::any_of(calls_.begin(), calls_.end(), [&](const Call& call) {
    const auto* batch = std::get_if<AcquireBatch>(&call.input);
    return batch != nullptr && batch->k == k;
  });
}

Instant ParkedCalls::NextDeadline() const {
  Instant next = absl::InfiniteDuration();
  for (const Call& call : calls_) next = std::min(next, call.deadline);
  return next;
}

}  // namespace sluice::queue
