#pragma once

#include "services/controller/loop.h"
#include "sluice/admin/v1/admin.grpc.pb.h"

namespace sluice::controller {

// The fleet, for people. Explain and Logs are other daemons' to serve.
class AdminService : public admin::v1::AdminService::CallbackService {
 public:
  explicit AdminService(Loop* loop) : loop_(loop) {}  // Outlives the service.

  grpc::ServerUnaryReactor* Daemons(grpc::CallbackServerContext* context, const admin::v1::DaemonsRequest* request,
                                    admin::v1::DaemonsResponse* response) override;

 private:
  Loop* const loop_;
};

}  // namespace sluice::controller
