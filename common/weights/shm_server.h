#pragma once

#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/fd.h"
#include "common/shm/socket.h"
#include "common/weights/object_stage.h"
#include "common/weights/weight_source.h"

namespace sluice {

namespace common::v1 {
class Call;
}
namespace weights::v1 {
class ShareRequest;
class ShareResponse;
}  // namespace weights::v1

// The unix socket where processes of this host get the memory of manifests and chunks. An object
// that is asked for is copied once into sealed memory, for all who ask (ObjectStage); its
// descriptor goes over the socket, and no byte of it does. A caller is checked as in any call, and
// gets segments of its own job only.
//
// Thread-safe. Owns one thread, `share`.
class ShmServer {
 public:
  // Finds what is served to a caller, or says why nothing is. Thread-safe.
  using FindSource =
      std::function<absl::StatusOr<std::shared_ptr<WeightSource>>(const common::v1::Call& call)>;
  explicit ShmServer(FindSource find) : find_(std::move(find)) {}
  ~ShmServer() { Stop(); }

  // Listens for those who know the gRPC server at `address`.
  // ALREADY_EXISTS: another process listens for them.
  absl::Status Start(absl::string_view address);
  // Closes all connections. Idempotent.
  void Stop();

 private:
  struct Client;
  // An eventfd, which wakes the thread. Sources keep it after the server has ended.
  struct Bell;
  void ServeLoop();
  // Takes the packet that has come. False if the connection has ended.
  bool Receive(Client* client);
  // Answers the request that waits, if that is possible or due. False if the connection has ended.
  bool AnswerParked(Client* client);
  bool Answer(Client* client, const weights::v1::ShareRequest& request, bool due);
  // *fd is that of the segment, which keeps it.
  absl::Status FindSegment(const weights::v1::ShareRequest& request,
                           weights::v1::ShareResponse* response, int* fd);
  absl::Status FindObjects(Client* client, const weights::v1::ShareRequest& request,
                           weights::v1::ShareResponse* response);

  const FindSource find_;
  std::unique_ptr<shm::Socket> listening_;
  std::shared_ptr<Bell> bell_;
  Fd stop_;  // An eventfd that ends the thread.
  std::thread thread_;
  ObjectStage stage_;  // Used by the thread.
};

}  // namespace sluice
