#include "services/queue/attach.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/status.h"
#include "common/base/utf8.h"
#include "common/log/log.h"
#include "services/queue/convert.h"
#include "services/queue/jobs.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::queue {

absl::Status AttachServer::Start(const std::string& address) {
  stop_ = Fd(eventfd(0, EFD_CLOEXEC));
  if (!stop_.valid()) return ErrnoStatus(errno, "eventfd");
  SLUICE_ASSIGN_OR_RETURN(shm::Socket socket, shm::Socket::Listen("sluice-queue/" + address));
  listening_ = std::make_unique<shm::Socket>(std::move(socket));
  thread_ = std::thread([this] { ServeLoop(); });
  return absl::OkStatus();
}

void AttachServer::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  SLUICE_CHECK(write(stop_.get(), &one, sizeof(one)) == sizeof(one));
  thread_.join();
}

std::shared_ptr<const AttachServer::Session> AttachServer::Find(absl::string_view id,
                                                                absl::string_view job,
                                                                const Caller& caller) const {
  MutexLock lock(&mu_);
  const auto it = sessions_.find(id);
  if (it == sessions_.end() || it->second->job != job || it->second->caller.worker != caller.worker)
    return nullptr;
  return it->second;
}

void AttachServer::ServeLoop() {
  std::vector<Client> clients;
  while (true) {
    std::vector<pollfd> polled = {{stop_.get(), POLLIN, 0}, {listening_->fd(), POLLIN, 0}};
    for (const Client& client : clients) polled.push_back({client.socket.fd(), POLLIN, 0});
    if (poll(polled.data(), polled.size(), -1) < 0) {
      if (errno == EINTR) continue;
      // No client can be served. Connections are closed, so that clients go on without the memory.
      log::Error("no_shared_memory", {{"error", ErrnoStatus(errno, "poll")}});
      break;
    }
    if (polled[0].revents != 0) break;

    std::vector<Client> connected;
    for (size_t i = 0; i < clients.size(); ++i) {
      if (polled[i + 2].revents == 0 || ServeClient(clients[i])) {
        connected.push_back(std::move(clients[i]));
      } else {
        EndSession(clients[i]);
      }
    }
    clients = std::move(connected);

    if (polled[1].revents == 0) continue;
    absl::StatusOr<shm::Socket> socket = listening_->Accept();
    if (socket.ok() && clients.size() < kMostSessions) clients.push_back({*std::move(socket), ""});
  }
  for (const Client& client : clients) EndSession(client);
  listening_.reset();
}

bool AttachServer::ServeClient(Client& client) {
  absl::StatusOr<shm::Socket::Packet> packet = client.socket.Receive(absl::ZeroDuration());
  if (!packet.ok()) return absl::IsDeadlineExceeded(packet.status());

  std::string response;
  Fd fd;
  const absl::Status status = Answer(client, packet->bytes, &response, &fd);
  if (!status.ok()) {
    v1::AttachResponse refused;
    refused.set_code(static_cast<uint32_t>(status.code()));
    refused.set_message(std::string(Utf8Prefix(Utf8Lossy(status.message()), 1000)));
    response = refused.SerializeAsString();
  }
  return client.socket.Send(response, fd.get()).ok();
}

absl::Status AttachServer::Answer(Client& client, const std::string& packet, std::string* response,
                                  Fd* fd) {
  v1::AttachRequest request;
  if (!request.ParseFromString(packet))
    return absl::InvalidArgumentError("the packet is not an AttachRequest");
  SLUICE_ASSIGN_OR_RETURN(const From from, FromProto(request.call()));
  SLUICE_ASSIGN_OR_RETURN(const std::shared_ptr<JobRunner> runner, jobs_->Find(from.job));
  SLUICE_RETURN_IF_ERROR(
      runner->ReadJob([&](const Job& job, Instant) { return job.CheckKnown(from.caller); }));

  v1::AttachResponse answer;
  if (request.segment() != 0) {
    if (Find(client.session, from.job, from.caller) == nullptr)
      return absl::FailedPreconditionError(
          "this connection is not attached for this job and worker; attach first");
    SLUICE_ASSIGN_OR_RETURN(Arena::Shared shared, runner->arena()->ShareSegment(request.segment()));
    answer.set_bytes(shared.bytes);
    *fd = std::move(shared.fd);
  } else {
    if (!client.session.empty())
      return absl::FailedPreconditionError("this connection is already attached");
    SLUICE_ASSIGN_OR_RETURN(shm::Segment buffer,
                            shm::Segment::Create("sluice-queue-put", kBufferBytes,
                                                 shm::Access::kEveryone, /*touch=*/false));
    *fd = Fd(fcntl(buffer.fd(), F_DUPFD_CLOEXEC, 0));
    if (!fd->valid()) return absl::ResourceExhaustedError("no file descriptor is left");

    const auto session =
        std::make_shared<Session>(Session{RandomId16(), from.job, from.caller, std::move(buffer)});
    client.session = session->id;
    answer.set_session(session->id);
    answer.set_bytes(kBufferBytes);
    log::Info("attached", {{"job_id", runner->name()}, {"worker", from.caller.worker}});
    MutexLock lock(&mu_);
    sessions_.emplace(session->id, session);
  }
  *response = answer.SerializeAsString();
  return absl::OkStatus();
}

void AttachServer::EndSession(const Client& client) {
  std::shared_ptr<const Session> gone;  // It is unmapped after the lock is released.
  MutexLock lock(&mu_);
  const auto it = sessions_.find(client.session);
  if (it == sessions_.end()) return;
  gone = std::move(it->second);
  sessions_.erase(it);
}

}  // namespace sluice::queue
