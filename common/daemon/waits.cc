#include "common/daemon/waits.h"

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/convert.h"
#include "sluice/common/v1/common.pb.h"

namespace sluice::daemon {

Waits::Scope::~Scope() {
  if (waits_ != nullptr) waits_->End(id_);
}

Waits::Scope Waits::Begin(Wait wait) {
  const absl::Duration now = clock_->Monotonic();
  MutexLock lock(&mu_);
  entries_.emplace(++last_, Entry{std::move(wait), now});
  return Scope(this, last_);
}

void Waits::End(uint64_t id) {
  MutexLock lock(&mu_);
  entries_.erase(id);
}

common::v1::WaitEdge MakeWaitEdge(const std::string& daemon, const Wait& wait) {
  common::v1::WaitEdge edge;
  const bool step = wait.step >= 0;
  edge.mutable_waiter()->set_kind(step ? common::v1::NODE_KIND_STEP : common::v1::NODE_KIND_DAEMON);
  edge.mutable_waiter()->set_id(step ? absl::StrCat(wait.step) : daemon);
  edge.mutable_waiter()->set_daemon(daemon);

  common::v1::NodeKind kind = common::v1::NODE_KIND_UNSPECIFIED;
  SLUICE_CHECK(common::v1::NodeKind_Parse(absl::StrCat("NODE_KIND_", wait.kind), &kind));
  edge.mutable_on()->set_kind(kind);
  edge.mutable_on()->set_id(wait.id);
  edge.mutable_on()->set_daemon(wait.at);

  edge.set_cause(wait.cause);
  edge.set_next(wait.next);
  return edge;
}

std::vector<common::v1::WaitEdge> Waits::Edges() const {
  const absl::Duration now = clock_->Monotonic();
  std::vector<common::v1::WaitEdge> edges;
  MutexLock lock(&mu_);
  for (const auto& [id, entry] : entries_) {
    edges.push_back(MakeWaitEdge(daemon_, entry.wait));
    *edges.back().mutable_since() = rpc::ToProto(now - entry.since);
  }
  return edges;
}

}  // namespace sluice::daemon
