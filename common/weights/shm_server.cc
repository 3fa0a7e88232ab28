#include "common/weights/shm_server.h"

#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <optional>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/log/log.h"
#include "common/rpc/convert.h"
#include "common/weights/shm_transport.h"
#include "sluice/weights/v1/weights.pb.h"

namespace sluice {
namespace {

constexpr size_t kMostClients = 256;
// A request for objects that are all still coming is answered after this time.
constexpr absl::Duration kBeat = absl::Milliseconds(250);

}  // namespace

struct ShmServer::Bell {
  Fd fd{eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)};

  void Ring() const {
    const uint64_t one = 1;
    // It can only fail if it was rung 2^64 - 2 times; then the thread wakes anyway.
    (void)!write(fd.get(), &one, sizeof(one));
  }
  void Silence() const {
    uint64_t rung;
    (void)!read(fd.get(), &rung, sizeof(rung));
  }
};

struct ShmServer::Client {
  shm::Socket socket;
  std::optional<weights::v1::ShareRequest> parked = std::nullopt;  // Its objects are coming.
  absl::Duration parked_since = absl::ZeroDuration();
  // A source will ring the bell for it.
  std::shared_ptr<std::atomic<bool>> listens = std::make_shared<std::atomic<bool>>(false);
};

absl::Status ShmServer::Start(absl::string_view address) {
  stop_ = Fd(eventfd(0, EFD_CLOEXEC));
  bell_ = std::make_shared<Bell>();
  if (!stop_.valid() || !bell_->fd.valid()) return ErrnoStatus(errno, "eventfd");
  SLUICE_ASSIGN_OR_RETURN(shm::Socket socket, shm::Socket::Listen(ShmSocketName(address)));
  listening_ = std::make_unique<shm::Socket>(std::move(socket));
  thread_ = std::thread([this] { ServeLoop(); });
  pthread_setname_np(thread_.native_handle(), "sluice-share");
  return absl::OkStatus();
}

void ShmServer::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  SLUICE_CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
}

void ShmServer::ServeLoop() {
  std::vector<Client> clients;
  while (true) {
    std::vector<pollfd> polled = {
        {stop_.get(), POLLIN, 0}, {bell_->fd.get(), POLLIN, 0}, {listening_->fd(), POLLIN, 0}};
    bool parked = false;
    for (const Client& client : clients) {
      polled.push_back({client.socket.fd(), POLLIN, 0});
      parked |= client.parked.has_value();
    }
    const absl::Duration wait = parked                  ? kBeat / 5
                                : stage_.segments() > 0 ? ObjectStage::kKeep / 2
                                                        : absl::InfiniteDuration();
    const int timeout =
        wait == absl::InfiniteDuration() ? -1 : static_cast<int>(absl::ToInt64Milliseconds(wait));
    if (poll(polled.data(), polled.size(), timeout) < 0) {
      if (errno == EINTR) continue;
      // No client can be served. Connections are closed, so that clients go on without the memory.
      log::Error("no_shared_memory", {{"error", ErrnoStatus(errno, "poll")}});
      break;
    }
    if (polled[0].revents != 0) break;
    if (polled[1].revents != 0) bell_->Silence();

    std::vector<Client> connected;
    for (size_t i = 0; i < clients.size(); ++i) {
      const bool came = polled[i + 3].revents != 0;
      if (came ? Receive(&clients[i]) : AnswerParked(&clients[i]))
        connected.push_back(std::move(clients[i]));
    }
    clients = std::move(connected);
    stage_.DropUnused(Clock::Real()->Monotonic());

    if (polled[2].revents == 0) continue;
    absl::StatusOr<shm::Socket> socket = listening_->Accept();
    if (socket.ok() && clients.size() < kMostClients)
      clients.push_back(Client{.socket = *std::move(socket)});
    // Without free descriptors the next poll() would return at once, again and again.
    if (!socket.ok()) Clock::Real()->Sleep(absl::Milliseconds(50));
  }
  listening_.reset();
}

bool ShmServer::Receive(Client* client) {
  const absl::StatusOr<shm::Socket::Packet> packet = client->socket.Receive(absl::ZeroDuration());
  if (!packet.ok()) return absl::IsDeadlineExceeded(packet.status());
  weights::v1::ShareRequest request;
  // A client sends its next request when the one before it is answered.
  if (client->parked.has_value() || !request.ParseFromString(packet->bytes)) return false;
  client->parked_since = Clock::Real()->Monotonic();
  return Answer(client, request, /*due=*/false);
}

bool ShmServer::AnswerParked(Client* client) {
  if (!client->parked.has_value()) return true;
  const weights::v1::ShareRequest request = *std::exchange(client->parked, std::nullopt);
  const bool due = Clock::Real()->Monotonic() - client->parked_since >= kBeat;
  return Answer(client, request, due);
}

bool ShmServer::Answer(Client* client, const weights::v1::ShareRequest& request, bool due) {
  weights::v1::ShareResponse response;
  absl::Status status;
  int fd = -1;
  if (request.segment() != 0) {
    status = FindSegment(request, &response, &fd);
  } else {
    status = FindObjects(client, request, &response);
    const bool empty = response.objects().empty() && response.missing().empty();
    if (status.ok() && empty && !due) {
      client->parked = request;
      return true;
    }
    response.set_waits(empty);
  }
  if (!status.ok()) {
    response.Clear();
    response.set_code(static_cast<uint32_t>(status.code()));
    response.set_message(std::string(Utf8Prefix(Utf8Lossy(status.message()), 1000)));
  }
  return client->socket.Send(response.SerializeAsString(), fd).ok();
}

absl::Status ShmServer::FindSegment(const weights::v1::ShareRequest& request,
                                    weights::v1::ShareResponse* response, int* fd) {
  SLUICE_RETURN_IF_ERROR(find_(request.call()).status());
  const ObjectStage::Segment* const segment =
      stage_.Find(request.call().job().job(), request.segment(), Clock::Real()->Monotonic());
  if (segment == nullptr)
    return absl::NotFoundError(absl::StrCat("there is no segment ", request.segment()));
  response->set_segment_bytes(segment->bytes);
  *fd = segment->fd.get();
  return absl::OkStatus();
}

absl::Status ShmServer::FindObjects(Client* client, const weights::v1::ShareRequest& request,
                                    weights::v1::ShareResponse* response) {
  if (request.objects().empty() || request.objects_size() > static_cast<int>(kMostSharedObjects)) {
    return absl::InvalidArgumentError(absl::StrCat("the request names ", request.objects_size(),
                                                   " objects; it must name 1 to ",
                                                   kMostSharedObjects));
  }
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<WeightSource> source, find_(request.call()));
  // Listen before looking, so that nothing that comes in between is overlooked.
  if (!client->listens->exchange(true)) {
    source->CallWhenChanged([bell = bell_, listens = client->listens] {
      *listens = false;
      bell->Ring();
    });
  }

  const PolicyVersion version = rpc::FromProto(request.version());
  std::vector<ObjectStage::Object> found;
  std::vector<uint32_t> indexes;
  uint64_t bytes = 0;
  for (int i = 0; i < request.objects_size(); ++i) {
    WeightSource::Lookup lookup = source->Find(request.objects(i), version);
    if (lookup.object == nullptr) {
      if (!lookup.is_coming) response->add_missing(static_cast<uint32_t>(i));
      continue;
    }
    bytes += lookup.object->size();
    found.push_back({request.objects(i), std::move(lookup.object)});
    indexes.push_back(static_cast<uint32_t>(i));
  }
  SLUICE_ASSIGN_OR_RETURN(
      const std::vector<ObjectStage::Place> places,
      stage_.Stage(request.call().job().job(), found, Clock::Real()->Monotonic()));
  for (size_t i = 0; i < places.size(); ++i) {
    weights::v1::SharedObject* const object = response->add_objects();
    object->set_index(indexes[i]);
    object->set_segment(places[i].segment);
    object->set_offset(places[i].offset);
    object->set_size(places[i].size);
  }
  source->OnSent(bytes);
  return absl::OkStatus();
}

}  // namespace sluice
