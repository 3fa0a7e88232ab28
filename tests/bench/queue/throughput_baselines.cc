#include "tests/bench/queue/throughput_baselines.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/impl/client_unary_call.h>
#include <grpcpp/impl/codegen/method_handler.h>
#include <grpcpp/impl/codegen/proto_utils.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "sluice/common/v1/common.pb.h"
#include "tests/bench/queue/throughput_queue.h"
#include "tests/integration/harness/process.h"

namespace sluice::bench {
namespace {
constexpr char kPut[] = "/naive.Queue/Put", kGet[] = "/naive.Queue/Get";
using common::v1::Record;
using common::v1::Want;

// Keeps each record as it came. Its fields are in `inline`, as bytes of the message.
class NaiveService : public grpc::Service {
 public:
  NaiveService() {
    Add<Record, Want>(kPut, [this](const Record& record, Want*) {
      const std::lock_guard lock(mu_);
      records_[record.owner().SerializeAsString()] = record;
    });
    Add<Want, Record>(kGet, [this](const Want& want, Record* record) {
      const std::lock_guard lock(mu_);
      *record = records_[want.owner().SerializeAsString()];
    });
  }

 private:
  template <typename Request, typename Response, typename Serve>
  void Add(const char* name, Serve serve) {
    AddMethod(new grpc::internal::RpcServiceMethod(
        name, grpc::internal::RpcMethod::NORMAL_RPC,
        new grpc::internal::RpcMethodHandler<NaiveService, Request, Response,
                                             google::protobuf::MessageLite,
                                             google::protobuf::MessageLite>(
            [serve](NaiveService*, grpc::ServerContext*, const Request* request,
                    Response* response) {
              serve(*request, response);
              return grpc::Status::OK;
            },
            this)));
  }
  std::mutex mu_;
  std::map<std::string, Record> records_;
};

template <typename Request, typename Response>
void NaiveCall(grpc::Channel* channel, const char* name, const Request& request,
               Response* response) {
  grpc::ClientContext context;
  const grpc::internal::RpcMethod method(name, grpc::internal::RpcMethod::NORMAL_RPC);
  const grpc::Status status =
      grpc::internal::BlockingUnaryCall<Request, Response, google::protobuf::MessageLite,
                                        google::protobuf::MessageLite>(channel, method, &context,
                                                                       request, response);
  SLUICE_CHECK_MSG(status.ok(), status.error_message());
}

// Returns the cost of the fastest of three runs.
template <typename Work>
Cost MeasureFastest(Work work) {
  Cost best{1e9, 1e9};
  for (int run = 0; run < 3; ++run) {
    const double cpu = OwnCpuSeconds(), start = WallSeconds();
    work();
    const Cost cost{WallSeconds() - start, OwnCpuSeconds() - cpu};
    if (cost.seconds < best.seconds) best = cost;
  }
  return best;
}
}  // namespace

Cost CopyMemory(size_t bytes) {
  const std::string from(bytes, 'x');
  std::string to(bytes, 'y');
  return MeasureFastest([&] { std::memcpy(to.data(), from.data(), bytes); });
}

Cost SendTcp(size_t bytes) {
  const int listening = socket(AF_INET, SOCK_STREAM, 0), out = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof(address);
  SLUICE_CHECK(bind(listening, reinterpret_cast<sockaddr*>(&address), size) == 0 &&
               listen(listening, 1) == 0);
  SLUICE_CHECK(getsockname(listening, reinterpret_cast<sockaddr*>(&address), &size) == 0);
  SLUICE_CHECK(connect(out, reinterpret_cast<sockaddr*>(&address), size) == 0);

  const int in = accept(listening, nullptr, nullptr);
  SLUICE_CHECK(in >= 0);
  std::string from(1 << 20, 'x'), to(1 << 20, 'y');
  const Cost cost = MeasureFastest([&] {
    std::thread sender([&] {
      for (size_t sent = 0; sent < bytes;)
        sent += static_cast<size_t>(
            std::max<ssize_t>(0, write(out, from.data(), std::min(from.size(), bytes - sent))));
    });

    for (size_t got = 0; got < bytes;)
      got += static_cast<size_t>(
          std::max<ssize_t>(0, read(in, to.data(), std::min(to.size(), bytes - got))));
    sender.join();
  });

  for (int fd : {in, out, listening}) close(fd);
  return cost;
}

NaiveCost NaiveQueue(size_t samples, size_t fields, size_t field_bytes) {
  auto server =
      integration::Process::Start({.binary = "/proc/self/exe", .args = {"--naive-server"}});
  SLUICE_CHECK_MSG(server.ok(), server.status().ToString());
  const auto address = (*server)->ReadLine(absl::Seconds(20));
  SLUICE_CHECK_MSG(address.ok(), address.status().ToString());
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(-1);
  const auto channel =
      grpc::CreateCustomChannel(*address, grpc::InsecureChannelCredentials(), arguments);
  std::vector<std::string> data;
  for (size_t f = 0; f < fields; ++f) data.emplace_back(field_bytes, static_cast<char>('a' + f));
  const auto timed = [&](auto work) {
    const double cpu = OwnCpuSeconds() + CpuSeconds((*server)->pid()), start = WallSeconds();
    for (size_t s = 0; s < samples; ++s) work(s);
    return Cost{WallSeconds() - start, OwnCpuSeconds() + CpuSeconds((*server)->pid()) - cpu};
  };

  const auto put = [&](size_t s) {
    Record record;
    record.mutable_owner()->set_group(absl::StrCat(s));
    for (size_t f = 0; f < fields; ++f) {
      common::v1::Field& field = *record.add_fields();
      field.set_name(absl::StrCat("f", f));
      field.set_inline_(data[f]);
    }

    Want empty;
    NaiveCall(channel.get(), kPut, record, &empty);
  };

  const auto get = [&](size_t s) {
    Want want;
    want.mutable_owner()->set_group(absl::StrCat(s));
    Record record;
    NaiveCall(channel.get(), kGet, want, &record);
    for (size_t f = 0; f < fields; ++f)
      SLUICE_CHECK(record.fields(static_cast<int>(f)).inline_() == data[f]);
  };

  return {timed(put), timed(get)};
}

int NaiveServer() {
  NaiveService service;
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.SetMaxReceiveMessageSize(-1);
  builder.RegisterService(&service);
  const auto server = builder.BuildAndStart();
  std::printf("127.0.0.1:%d\n", port);
  std::fflush(stdout);
  server->Wait();

  return 0;
}

}  // namespace sluice::bench
