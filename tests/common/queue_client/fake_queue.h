#pragma once

#include <atomic>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/queue_client/queue_client.h"
#include "common/rpc/buffer.h"
#include "common/rpc/payload.h"
#include "common/rpc/server.h"
#include "common/rpc/server_stream.h"
#include "sluice/queue/v1/queue.grpc.pb.h"
#include "tests/common/handed.h"

namespace sluice {

// The queue's service as its clients see it. A test sets a function for each call that it expects,
// before the first call. The functions run on threads of gRPC.
class FakeQueue : public queue::v1::QueueService::WithRawCallbackMethod_Put<
                      queue::v1::QueueService::WithRawCallbackMethod_Get<
                          queue::v1::QueueService::WithCallbackMethod_Watch<
                              queue::v1::QueueService::WithCallbackMethod_Renew<
                                  queue::v1::QueueService::WithCallbackMethod_Admit<
                                      queue::v1::QueueService::WithCallbackMethod_Apply<
                                          queue::v1::QueueService::WithCallbackMethod_LeaseTasks<
                                              queue::v1::QueueService::WithCallbackMethod_Release<
                                                  queue::v1::QueueService::Service>>>>>>>> {
 public:
  using Buffer = grpc::ByteBuffer;
  using GetStream = rpc::WriteStream<Buffer>;
  using WatchStream = rpc::WriteStream<queue::v1::WatchResponse>;

  // A Put stream. on_put gets each message that arrives, and answers through this object.
  struct PutStreamEnd : rpc::BidiStream<Buffer, Buffer> {
    explicit PutStreamEnd(FakeQueue* owner, int number) : owner(owner), number(number) {}
    void OnMessage(Buffer& buffer) override {
      rpc::Frame frame;
      queue::v1::PutHeader header;
      absl::Status status = rpc::DecodeFrame(buffer, &frame);
      if (status.ok()) status = frame.ParseHeader(&header);
      if (!status.ok()) return End(status);
      std::string payload;
      for (absl::string_view piece : frame.payload()) payload.append(piece.data(), piece.size());
      owner->on_put(*this, header, payload);
    }
    void Ack(uint64_t seq, std::vector<queue::v1::Failed> failed = {}) {
      queue::v1::PutAck ack;
      ack.set_seq(seq);
      for (const auto& one : failed) *ack.add_failed() = one;
      Send(rpc::ToBuffer(ack));
    }

    FakeQueue* const owner;
    const int number;  // Of the stream, counted from 0.
  };

  std::function<void(PutStreamEnd&, const queue::v1::PutHeader&, const std::string&)> on_put;
  std::function<void(GetStream&, const queue::v1::GetRequest&)> on_get;
  // The number is that of the stream, counted from 0.
  std::function<void(WatchStream&, int)> on_watch;
  std::function<absl::Status(const queue::v1::RenewRequest&, queue::v1::RenewResponse*)> on_renew;
  std::function<absl::Status(const queue::v1::ApplyRequest&, queue::v1::ApplyResponse*)> on_apply;
  std::function<absl::Status(const queue::v1::ReleaseRequest&)> on_release;
  // The answers of LeaseTasks, in order. Once they are used up, a call is parked.
  std::deque<queue::v1::LeaseTasksResponse> task_leases;
  std::function<void(const queue::v1::LeaseTasksRequest&)> on_lease_tasks;  // May be null.
  Handed<queue::v1::AdmitRequest> admits;  // Each call is parked until its client leaves.

  grpc::ServerBidiReactor<Buffer, Buffer>* Put(grpc::CallbackServerContext*) override {
    auto stream = rpc::MakeStream<PutStreamEnd>(this, puts_++);
    stream->StartReading();
    return stream.get();
  }
  grpc::ServerWriteReactor<Buffer>* Get(grpc::CallbackServerContext*,
                                        const Buffer* bytes) override {
    auto stream = rpc::MakeStream<GetStream>();
    Buffer copy = *bytes;
    queue::v1::GetRequest request;
    if (absl::Status status = rpc::FromBuffer(&copy, &request); status.ok())
      on_get(*stream, request);
    return stream.get();
  }
  grpc::ServerWriteReactor<queue::v1::WatchResponse>* Watch(
      grpc::CallbackServerContext*, const queue::v1::WatchRequest*) override {
    auto stream = rpc::MakeStream<WatchStream>();
    on_watch(*stream, watches_++);
    return stream.get();
  }
  grpc::ServerUnaryReactor* Renew(grpc::CallbackServerContext* context,
                                  const queue::v1::RenewRequest* request,
                                  queue::v1::RenewResponse* response) override {
    return Answer(context, on_renew(*request, response));
  }
  grpc::ServerUnaryReactor* Apply(grpc::CallbackServerContext* context,
                                  const queue::v1::ApplyRequest* request,
                                  queue::v1::ApplyResponse* response) override {
    return Answer(context, on_apply(*request, response));
  }
  grpc::ServerUnaryReactor* Admit(grpc::CallbackServerContext*,
                                  const queue::v1::AdmitRequest* request,
                                  queue::v1::AdmitResponse*) override {
    auto* parked = new Parked;
    admits.Push(*request);
    return parked;
  }
  grpc::ServerUnaryReactor* LeaseTasks(grpc::CallbackServerContext* context,
                                       const queue::v1::LeaseTasksRequest* request,
                                       queue::v1::LeaseTasksResponse* response) override {
    if (on_lease_tasks) on_lease_tasks(*request);
    std::lock_guard lock(task_leases_mu_);
    if (task_leases.empty()) return new Parked;
    *response = std::move(task_leases.front());
    task_leases.pop_front();
    return Answer(context, absl::OkStatus());
  }
  grpc::ServerUnaryReactor* Release(grpc::CallbackServerContext* context,
                                    const queue::v1::ReleaseRequest* request,
                                    queue::v1::ReleaseResponse*) override {
    return Answer(context, on_release(*request));
  }

 private:
  // A call that has no answer and ends when its client leaves.
  class Parked : public grpc::ServerUnaryReactor {
    void OnCancel() override { Finish(grpc::Status::CANCELLED); }
    void OnDone() override { delete this; }
  };
  static grpc::ServerUnaryReactor* Answer(grpc::CallbackServerContext* context,
                                          const absl::Status& status) {
    auto* reactor = context->DefaultReactor();
    reactor->Finish(rpc::ToGrpcStatus(status));
    return reactor;
  }
  std::mutex task_leases_mu_;
  std::atomic<int> puts_{0};
  std::atomic<int> watches_{0};
};

// A fake queue with its server, and a client whose back-off is short.
struct Served {
  FakeQueue queue;
  std::unique_ptr<rpc::Server> server;
  rpc::Cancel cancel;
  rpc::Cancel drain;
  std::unique_ptr<QueueClient> client;

  // Call this once the functions of `queue` are set.
  void Start() {
    grpc::Service* const services[] = {&queue};
    server = *rpc::Server::Start({}, services);
    client = std::make_unique<QueueClient>(
        *rpc::Connect(server->address(), {rpc::Role::kQueue}),
        QueueClient::Options{
            .job = "job",
            .worker = "rollout-0",
            .incarnation = 3,
            .cancel = &cancel,
            .drain = &drain,
            .backoff = {.first = absl::Microseconds(100), .longest = absl::Milliseconds(1)}});
  }
};

inline common::v1::Record RecordOf(uint32_t member) {
  common::v1::Record record;
  record.mutable_owner()->set_group(std::string(16, 'g'));
  record.mutable_owner()->set_member(member);
  return record;
}

}  // namespace sluice
