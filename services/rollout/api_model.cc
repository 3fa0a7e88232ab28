#include "services/rollout/api_model.h"

#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/models/adapter.h"
#include "services/rollout/session.h"

namespace sluice::rollout {

ApiModel::ApiModel(std::shared_ptr<Session> session)
    : session_(std::move(session)), name_(session_->job_name()), loaded_(Clock::Real()->Now()) {}
ApiModel::ApiModel(std::shared_ptr<Session> session, const std::string& adapter_name,
                   std::shared_ptr<const Adapter> adapter)
    : session_(std::move(session)),
      name_(absl::StrCat(session_->job_name(), ":", adapter_name)),
      adapter_(std::move(adapter)),
      loaded_(Clock::Real()->Now()) {}
ApiModel::~ApiModel() = default;

const PromptRenderer& ApiModel::renderer() const { return session_->renderer(); }
uint32_t ApiModel::max_context() const { return session_->engine().max_context(); }
std::optional<PolicyVersion> ApiModel::serving() const { return session_->serving(); }
std::string ApiModel::digest(PolicyVersion version) const {
  const std::string weights = session_->digest(version);
  return adapter_ == nullptr || weights.empty()
             ? weights
             : absl::StrCat(weights, "+", absl::BytesToHexString(adapter_->digest()).substr(0, 16));
}

void ApiModel::Add(std::vector<Request> requests) {
  for (Request& request : requests) request.adapter = adapter_;
  session_->AddGuestRequests(std::move(requests));
}

void ApiModel::Abort(const std::vector<uint64_t>& requests) {
  session_->AbortGuestRequests(requests);
}

}  // namespace sluice::rollout
