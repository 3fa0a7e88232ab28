#pragma once

#include "common/meta/store.h"
#include "services/controller/loop.h"
#include "services/controller/pool.h"
#include "sluice/admin/v1/admin.grpc.pb.h"

namespace sluice::controller {

// Lists and drains the daemons of the fleet for people, copies the store, and sets failpoints. The
// controller does not serve Explain, which is a call of the other daemons.
class AdminService : public admin::v1::AdminService::CallbackService {
 public:
  // Both outlive the service.
  AdminService(Loop* loop, meta::Store* store) : loop_(loop), store_(store) {}

  grpc::ServerUnaryReactor* Daemons(grpc::CallbackServerContext* context,
                                    const admin::v1::DaemonsRequest* request,
                                    admin::v1::DaemonsResponse* response) override;
  grpc::ServerUnaryReactor* Drain(grpc::CallbackServerContext* context,
                                  const admin::v1::DrainRequest* request,
                                  admin::v1::DrainResponse* response) override;
  grpc::ServerUnaryReactor* Failpoint(grpc::CallbackServerContext* context,
                                      const admin::v1::FailpointRequest* request,
                                      admin::v1::FailpointResponse* response) override;
  grpc::ServerWriteReactor<admin::v1::BackupResponse>* Backup(
      grpc::CallbackServerContext* context, const admin::v1::BackupRequest* request) override;

 private:
  Loop* const loop_;
  meta::Store* const store_;
  Pool backups_{1};  // Reads the store for one copy after the other, beside the loop.
};

}  // namespace sluice::controller
