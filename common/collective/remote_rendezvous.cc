#include "common/collective/remote_rendezvous.h"

#include <algorithm>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/rpc/client.h"
#include "sluice/collective/v1/collective.pb.h"

namespace sluice {
namespace {

// How soon a rank asks again for a value that is not there yet. Ranks start at about the same time.
constexpr absl::Duration kAskFirst = absl::Milliseconds(2), kAskAgain = absl::Milliseconds(50);

}  // namespace

template <typename Request, typename Response>
absl::Status RemoteRendezvous::Call(Request request, Response* response) const {
  common::v1::JobRef* const caller = request.mutable_call()->mutable_job();
  caller->set_job(options_.job);
  caller->set_worker(options_.worker);
  caller->set_incarnation(options_.incarnation);
  request.set_group(options_.group);
  return rpc::Call(*channel_, request, response,
                   {.give_up = options_.give_up, .cancel = options_.cancel});
}

absl::Status RemoteRendezvous::Set(const std::string& key, const std::string& value) {
  collective::v1::SetRequest request;
  request.set_key(key);
  request.set_value(value);
  collective::v1::SetResponse response;
  return Call(std::move(request), &response);
}

absl::StatusOr<std::string> RemoteRendezvous::Get(const std::string& key, absl::Duration timeout) {
  collective::v1::GetRequest request;
  request.set_key(key);
  const absl::Duration end = Clock::Real()->Monotonic() + timeout;
  absl::Duration wait = kAskFirst;
  while (true) {
    collective::v1::GetResponse response;
    const absl::Status status = Call(request, &response);
    if (status.ok()) return response.value();
    if (ReasonOf(status) != "NOT_YET") return status;
    if (Clock::Real()->Monotonic() >= end) return status;
    if (options_.cancel->WaitFor(wait)) return absl::CancelledError("this rank leaves the group");
    wait = std::min(2 * wait, kAskAgain);
  }
}

}  // namespace sluice
