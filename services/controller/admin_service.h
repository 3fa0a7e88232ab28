#pragma once

#include "services/controller/loop.h"
#include "sluice/admin/v1/admin.grpc.pb.h"

namespace sluice::controller {

// The fleet, for people, and failpoints. Explain is other daemons' to serve.
class AdminService : public admin::v1::AdminService::CallbackService {
 public:
  explicit AdminService(Loop* loop) : loop_(loop) {}  // Outlives the service.

  grpc::ServerUnaryReactor* Daemons(grpc::CallbackServerContext* context,
                                    const admin::v1::DaemonsRequest* request,
                                    admin::v1::DaemonsResponse* response) override;
  grpc::ServerUnaryReactor* Failpoint(grpc::CallbackServerContext* context,
                                      const admin::v1::FailpointRequest* request,
                                      admin::v1::FailpointResponse* response) override;

 private:
  Loop* const loop_;
};

}  // namespace sluice::controller
