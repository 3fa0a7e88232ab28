#pragma once

#include "services/controller/loop.h"
#include "sluice/admin/v1/admin.grpc.pb.h"

namespace sluice::controller {

// Lists and drains the daemons of the fleet for people, and sets failpoints. The controller does
// not serve Explain, which is a call of the other daemons.
class AdminService : public admin::v1::AdminService::CallbackService {
 public:
  explicit AdminService(Loop* loop) : loop_(loop) {}  // `loop` outlives the service.

  grpc::ServerUnaryReactor* Daemons(grpc::CallbackServerContext* context,
                                    const admin::v1::DaemonsRequest* request,
                                    admin::v1::DaemonsResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const admin::v1::DrainRequest* request,
                                  admin::v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* Failpoint(grpc::CallbackServerContext* context,
                                      const admin::v1::FailpointRequest* request,
                                      admin::v1::FailpointResponse* response) override;

 private:
  Loop* const loop_;
};

}  // namespace sluice::controller
