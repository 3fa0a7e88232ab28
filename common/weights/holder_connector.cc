#include "common/weights/holder_connector.h"

#include <functional>
#include <map>
#include <utility>

#include "common/base/status.h"
#include "common/log/log.h"
#include "common/weights/file_transport.h"
#include "common/weights/grpc_transport.h"
#include "common/weights/holder_plan.h"
#include "common/weights/shm_transport.h"
#include "common/weights/ucx_memory.h"

namespace sluice {

HolderConnector::HolderConnector(Options options)
    : options_(std::move(options)),
      ucx_(options_.ucx_devices.has_value() && options_.ucx_devices->ok()
               ? std::make_unique<UcxMemory>(**options_.ucx_devices)
               : nullptr),
      channels_({rpc::Role::kRollout}) {}
HolderConnector::~HolderConnector() = default;

ObjectFetcher::Holder HolderConnector::MakeCaller(const std::string& id,
                                                  std::shared_ptr<rpc::Channel> channel) const {
  return {.id = id,
          .transport = std::make_shared<GrpcTransport>(std::move(channel), options_.caller),
          .why = ""};
}

std::vector<ObjectFetcher::Holder> HolderConnector::ListCallable(
    const Known& known, const std::function<bool(const std::string& id)>& is_avoided) {
  const std::string origin(kOriginId);
  std::vector<ObjectFetcher::Holder> holders;
  if (known.chain.empty()) {
    if (known.trainer != nullptr) holders.push_back(MakeCaller(origin, known.trainer));
    return holders;
  }

  std::map<std::string, std::string> addresses;
  for (const RelayMember& member : known.chain) addresses[member.id] = member.address;
  for (const std::string& id : ListHolders(known.chain, options_.caller.worker, is_avoided)) {
    if (id == kOriginId) {
      if (known.trainer != nullptr) holders.push_back(MakeCaller(origin, known.trainer));
      continue;
    }
    auto channel = ChannelTo(addresses.at(id));
    if (!channel.ok()) {
      log::Error("weights_source", {{"job_id", options_.caller.job}, {"error", channel.status()}});
      continue;
    }
    holders.push_back(MakeCaller(id, *std::move(channel)));
  }
  return holders;
}

std::vector<ObjectFetcher::Holder> HolderConnector::Connect(const Known& known,
                                                            const HolderHistory& history,
                                                            absl::Duration now) {
  std::shared_ptr<Transport> memory;  // Of the one that was reached last.
  HolderFacts facts{.shared_memory = options_.shared_memory,
                    .broadcast = options_.broadcast.has_value() && known.trainer != nullptr,
                    .folder = options_.folder != nullptr};
  if (options_.ucx_devices.has_value()) facts.ucx = options_.ucx_devices->status();
  facts.is_avoided = [&](const std::string& key) { return history.IsAvoided(key, now); };
  std::map<std::string, ObjectFetcher::Holder> calls;
  for (ObjectFetcher::Holder& holder : ListCallable(known, facts.is_avoided)) {
    facts.holders.push_back(holder.id);
    calls[holder.id] = std::move(holder);
  }

  // The trainer, and the rollouts before this one.
  std::map<std::string, std::string> addresses;
  const auto add_upstream = [&](const std::string& id, const std::string& address) {
    facts.upstream.push_back(id);
    addresses[id] = address;
  };
  if (!known.trainer_address.empty()) add_upstream(std::string(kOriginId), known.trainer_address);
  for (const RelayMember& member : known.chain) {
    if (member.id == options_.caller.worker) break;
    add_upstream(member.id, member.address);
  }
  facts.reach_memory = [&](const std::string& id) -> absl::Status {
    SLUICE_ASSIGN_OR_RETURN(memory, ShmTransport::Connect(addresses.at(id), options_.caller));
    return absl::OkStatus();
  };

  std::vector<ObjectFetcher::Holder> holders;
  for (PlannedHolder& planned : PlanHolders(facts)) {
    ObjectFetcher::Holder holder{.id = planned.id};
    if (planned.transport->same_host) holder.transport = memory;
    else if (planned.transport->broadcasts)
      holder.transport =
          std::make_shared<BroadcastTransport>(known.trainer, options_.caller, *options_.broadcast);
    else if (planned.transport->needs_folder) holder.transport = options_.folder;
    else if (planned.transport->reads_memory) {
      holder.transport = std::make_shared<GrpcTransport>(
          planned.id == kOriginId ? known.trainer : *ChannelTo(addresses.at(planned.id)),
          options_.caller, ucx_.get());
    } else {
      holder = calls.at(planned.id);
    }
    holder.why = std::move(planned.why);
    holders.push_back(std::move(holder));
  }
  return holders;
}

}  // namespace sluice
