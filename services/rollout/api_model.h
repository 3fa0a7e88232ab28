#pragma once

#include <memory>
#include <string>
#include <vector>

#include "services/rollout/http/model.h"

namespace sluice::rollout {
class Session;

// A session as the HTTP API sees it: the job's name is the model's, its newest verified weights
// answer. With an adapter the model is JOB:ADAPTER, those weights and the adapter's change; its
// digest names both.
//
// Thread-safe.
class ApiModel : public http::Model {
 public:
  explicit ApiModel(std::shared_ptr<Session> session);
  ApiModel(std::shared_ptr<Session> session, const std::string& adapter_name,
           std::shared_ptr<const Adapter> adapter);
  ~ApiModel() override;

  const std::string& name() const override { return name_; }
  const PromptRenderer& renderer() const override;
  uint32_t max_context() const override;
  absl::Time loaded() const override { return loaded_; }
  std::optional<PolicyVersion> serving() const override;
  std::string digest(PolicyVersion version) const override;
  void Add(std::vector<Request> requests) override;
  void Abort(const std::vector<uint64_t>& requests) override;

 private:
  const std::shared_ptr<Session> session_;
  const std::string name_;
  const std::shared_ptr<const Adapter> adapter_;  // Null: none.
  const absl::Time loaded_;
};

}  // namespace sluice::rollout
