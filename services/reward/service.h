#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "services/reward/job_rewards.h"

namespace sluice::reward {

// Makes the service for what people ask of rewards. Jobs are given as 32 hex digits. Both functions
// are called on threads of the server, and must not block.
std::unique_ptr<grpc::Service> MakeRewardService(
    std::function<absl::StatusOr<v1::DescribeResponse>(const std::string& job)> describe,
    std::function<void(const std::string& job, const std::string& reward,
                       JobRewards::Reloaded done)>
        reload);

}  // namespace sluice::reward
