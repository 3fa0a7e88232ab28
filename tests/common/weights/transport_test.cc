// What every transport must do, whole and with faults: each test runs over real servers, sockets
// and files of each of them.
#include "common/weights/transport.h"

#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <csignal>
#include <cstdlib>
#include <future>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "common/base/clock.h"
#include "common/base/digest.h"
#include "common/base/fd.h"
#include "common/base/file.h"
#include "common/base/id.h"
#include "common/base/mutex.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/collective/c10d_collective.h"
#include "common/collective/rendezvous_server.h"
#include "common/rpc/caller.h"
#include "common/rpc/cancel.h"
#include "common/rpc/convert.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/shm/socket.h"
#include "common/testing/data.h"
#include "common/weights/broadcast_server.h"
#include "common/weights/broadcast_transport.h"
#include "common/weights/file_transport.h"
#include "common/weights/grpc_transport.h"
#include "common/weights/object_fetcher.h"
#include "common/weights/service.h"
#include "common/weights/shm_transport.h"
#include "common/weights/ucx_memory.h"
#include "common/weights/weight_folder.h"
#include "sluice/weights/v1/weights.grpc.pb.h"

namespace sluice {
namespace {

constexpr char kWireJob[] = "00112233445566778899aabbccddeeff";
constexpr PolicyVersion kWireVersion = {3, 7};
// For "ucx_tcp". Set while there is one thread.
const int kWiresByTcp = setenv("UCX_TLS", "tcp", /*overwrite=*/1);
const WeightCaller kWireCaller = {.job = kWireJob, .worker = "rollout-0", .incarnation = 1};

// Objects by id. What lies under an id need not be what it names.
class WireSource : public WeightSource {
 public:
  void Put(const std::string& id, std::string bytes) {
    std::vector<std::function<void()>> waiters;
    {
      MutexLock lock(&mu_);
      objects_[id] = std::make_shared<const std::string>(std::move(bytes));
      waiters.swap(waiters_);
    }
    for (const auto& waiter : waiters) waiter();
  }
  void Expect(const std::string& id) {
    MutexLock lock(&mu_);
    coming_.insert(id);
  }
  // How often an object was looked for and was still coming.
  int looked_in_vain() const {
    MutexLock lock(&mu_);
    return looked_in_vain_;
  }

  Lookup Find(const std::string& id, PolicyVersion) const override {
    MutexLock lock(&mu_);
    if (const auto it = objects_.find(id); it != objects_.end()) return {it->second};
    looked_in_vain_ += coming_.contains(id) ? 1 : 0;
    return {nullptr, coming_.contains(id)};
  }
  void CallWhenChanged(std::function<void()> changed) override {
    MutexLock lock(&mu_);
    waiters_.push_back(std::move(changed));
  }
  std::vector<WeightEdge> edges() const override { return {}; }

 private:
  mutable Mutex mu_;
  std::map<std::string, std::shared_ptr<const std::string>> objects_ ABSL_GUARDED_BY(mu_);
  std::set<std::string> coming_ ABSL_GUARDED_BY(mu_);
  std::vector<std::function<void()>> waiters_ ABSL_GUARDED_BY(mu_);
  mutable int looked_in_vain_ ABSL_GUARDED_BY(mu_) = 0;
};

// For tests in which nobody is silent, however slow the machine is.
constexpr HolderLimits kPatientLimits = {.silent = absl::Seconds(60), .starved = absl::Seconds(60)};

// A holder with a real server, which serves by calls, by shared memory and over UCX.
class WireServer {
 public:
  explicit WireServer(const std::string& ucx_devices = "shm")
      : source_(std::make_shared<WireSource>()), weights_(&callers_) {
    callers_.SetJob(kWireJob, {{"rollout-0", rpc::Role::kRollout, 1}});
    weights_.SetRelay(kWireJob, source_, nullptr);
    weights_.OfferUcx(ucx_devices);
    grpc::Service* const services[] = {weights_.service()};
    server_ = *rpc::Server::Start({}, services);
    EXPECT_EQ(weights_.ShareMemory(server_->address()), absl::OkStatus());
    channel_ = *rpc::Connect(server_->address(), {rpc::Role::kRollout});
  }
  ~WireServer() {
    weights_.Shutdown();
    server_->Drain(absl::ZeroDuration());
  }
  WireSource& source() { return *source_; }
  WeightsServer& weights() { return weights_; }
  const std::shared_ptr<rpc::Channel>& channel() const { return channel_; }
  const std::string& address() const { return server_->address(); }

 private:
  const std::shared_ptr<WireSource> source_;
  rpc::CallerTable callers_;
  WeightsServer weights_;
  std::unique_ptr<rpc::Server> server_;
  std::shared_ptr<rpc::Channel> channel_;
};

// A holder that is reached by one transport.
class Wire {
 public:
  virtual ~Wire() = default;
  // Stores `bytes` under `id`, whatever it names.
  virtual void Put(const std::string& id, const std::string& bytes) = 0;
  virtual WireSource* source() { return nullptr; }  // Null: nothing can be coming.
  // Stores a manifest of these objects as the chunks of a whole version, if the transport needs it.
  virtual std::unique_ptr<WholeVersion> PutWhole(const std::vector<std::string>&) {
    return nullptr;
  }
  virtual std::unique_ptr<Transport> Connect() = 0;
  // A transport to a holder that takes requests and never answers.
  virtual std::unique_ptr<Transport> ConnectToSilence() = 0;
};

// The kernel accepts connections to it, and nobody reads from them.
class MuteServer {
 public:
  std::shared_ptr<rpc::Channel> Connect() {
    fd_ = Fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    EXPECT_EQ(bind(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)), 0);
    EXPECT_EQ(listen(fd_.get(), 8), 0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(getsockname(fd_.get(), reinterpret_cast<sockaddr*>(&address), &size), 0);
    return *rpc::Connect(absl::StrCat("127.0.0.1:", ntohs(address.sin_port)),
                         {rpc::Role::kRollout});
  }

 private:
  Fd fd_;
};

class GrpcWire : public Wire {
 public:
  GrpcWire() = default;
  // Objects are read over UCX.
  explicit GrpcWire(const std::string& ucx_devices)
      : ucx_(std::make_unique<UcxMemory>(ucx_devices)), server_(ucx_devices) {}
  void Put(const std::string& id, const std::string& bytes) override {
    server_.source().Put(id, bytes);
  }
  WireSource* source() override { return &server_.source(); }
  std::unique_ptr<Transport> Connect() override {
    return std::make_unique<GrpcTransport>(server_.channel(), kWireCaller, ucx_.get());
  }
  std::unique_ptr<Transport> ConnectToSilence() override {
    mute_channel_ = mute_.Connect();
    return std::make_unique<GrpcTransport>(mute_channel_, kWireCaller, ucx_.get());
  }

 private:
  const std::unique_ptr<UcxMemory> ucx_;  // Null: objects come in pieces.
  WireServer server_;
  MuteServer mute_;
  std::shared_ptr<rpc::Channel> mute_channel_;
};

class ShmWire : public Wire {
 public:
  void Put(const std::string& id, const std::string& bytes) override {
    server_.source().Put(id, bytes);
  }
  WireSource* source() override { return &server_.source(); }
  std::unique_ptr<Transport> Connect() override {
    return *ShmTransport::Connect(server_.address(), kWireCaller);
  }
  std::unique_ptr<Transport> ConnectToSilence() override {
    const std::string address = absl::StrCat("mute-", getpid());
    mute_.reset();
    mute_ = std::make_unique<shm::Socket>(*shm::Socket::Listen(ShmSocketName(address)));
    return *ShmTransport::Connect(address, kWireCaller);
  }

 private:
  WireServer server_;
  std::unique_ptr<shm::Socket> mute_;
};

class FileWire : public Wire {
 public:
  ~FileWire() override { hangs_->Notify(); }
  void Put(const std::string& id, const std::string& bytes) override {
    EXPECT_EQ(MakeDirs(absl::StrCat(folder_, "/", kWireVersion.incarnation, "/objects")),
              absl::OkStatus());
    EXPECT_EQ(WriteFileAtomic(WeightObjectPath(folder_, kWireVersion.incarnation, id), bytes),
              absl::OkStatus());
  }
  std::unique_ptr<Transport> Connect() override {
    return std::make_unique<FileTransport>(folder_, kWireJob);
  }
  std::unique_ptr<Transport> ConnectToSilence() override {
    return std::make_unique<FileTransport>(
        folder_, kWireJob,
        [hangs = hangs_](const std::string&, uint64_t) -> absl::StatusOr<std::string> {
          hangs->WaitForNotification();
          return absl::UnavailableError("the disk is gone");
        });
  }

 private:
  const std::string folder_ = testing_data::TempPath("wire-" + ToHex(RandomId16()));
  const std::shared_ptr<absl::Notification> hangs_ = std::make_shared<absl::Notification>();
};

// A trainer that broadcasts to one rollout, if need be.
class BroadcastWire : public Wire {
 public:
  BroadcastWire() : rendezvous_(&callers_), service_(source_, &rendezvous_) {
    std::signal(SIGPIPE, SIG_IGN);  // See JoinC10d().
    callers_.SetJob(kWireJob, {{"rollout-0", rpc::Role::kRollout, 1}});
    grpc::Service* const services[] = {&service_, rendezvous_.service()};
    server_ = *rpc::Server::Start({}, services);
    channel_ = *rpc::Connect(server_->address(), {rpc::Role::kTrainer});
  }
  ~BroadcastWire() override {
    service_.broadcasts.Stop();
    server_->Drain(absl::ZeroDuration());
  }
  void Put(const std::string& id, const std::string& bytes) override {
    source_->Put(id, bytes);
    sizes_[id] = bytes.size();
  }
  std::unique_ptr<WholeVersion> PutWhole(const std::vector<std::string>& ids) override {
    weights::v1::Manifest manifest;
    manifest.set_kind(weights::v1::Manifest::KIND_FULL);
    auto whole = std::make_unique<WholeVersion>();
    for (const std::string& id : ids) {
      const auto size = sizes_.find(id);  // Else the object is missing.
      whole->ids.push_back(id);
      whole->bytes.push_back(size == sizes_.end() ? 5 : size->second);
      weights::v1::Chunk& chunk = *manifest.add_chunks();
      chunk.set_sha256(id);
      chunk.set_wire_bytes(static_cast<uint32_t>(whole->bytes.back()));
    }
    whole->end = ids.size();
    whole->manifest = Sha256(manifest.SerializeAsString());
    source_->Put(whole->manifest, manifest.SerializeAsString());
    return whole;
  }
  std::unique_ptr<Transport> Connect() override {
    return std::make_unique<BroadcastTransport>(channel_, kWireCaller, kOptions);
  }
  std::unique_ptr<Transport> ConnectToSilence() override {
    return std::make_unique<BroadcastTransport>(mute_.Connect(), kWireCaller, kOptions);
  }

 private:
  static inline const BroadcastOptions kOptions = {
      .join = JoinC10d, .host = "127.0.0.1", .wait = absl::ZeroDuration()};

  // The call JoinBroadcast as a trainer serves it.
  class Service : public weights::v1::WeightsService::Service {
   public:
    Service(std::shared_ptr<WeightSource> source, RendezvousServer* rendezvous)
        : broadcasts({.join = JoinC10d, .host = "127.0.0.1", .least = 1}, rendezvous),
          source_(std::move(source)) {}
    BroadcastServer broadcasts;

   private:
    grpc::Status JoinBroadcast(grpc::ServerContext* context,
                               const weights::v1::JoinBroadcastRequest* request,
                               weights::v1::JoinBroadcastResponse* response) override {
      using Answer = absl::StatusOr<weights::v1::JoinBroadcastResponse>;
      const auto answered = std::make_shared<std::promise<Answer>>();
      broadcasts.Join(
          {.job = request->call().job().job(),
           .worker = request->call().job().worker(),
           .manifest = request->manifest(),
           .wait = rpc::FromProto(request->wait()),
           .source = source_,
           .expected = {},
           .has_left = [context] { return context->IsCancelled(); },
           .answer = [answered](Answer seat) { answered->set_value(std::move(seat)); }});
      Answer seat = answered->get_future().get();
      if (seat.ok()) *response = *std::move(seat);
      return rpc::ToGrpcStatus(seat.status());
    }

    const std::shared_ptr<WeightSource> source_;
  };

  const std::shared_ptr<WireSource> source_ = std::make_shared<WireSource>();
  std::map<std::string, size_t> sizes_;
  rpc::CallerTable callers_;
  RendezvousServer rendezvous_;
  Service service_;
  std::unique_ptr<rpc::Server> server_;
  std::shared_ptr<rpc::Channel> channel_;
  MuteServer mute_;
};

std::unique_ptr<Wire> MakeWire(const std::string& transport) {
  if (transport == "c10d") return std::make_unique<BroadcastWire>();
  if (transport == "grpc") return std::make_unique<GrpcWire>();
  if (transport == "shm") return std::make_unique<ShmWire>();
  if (transport == "ucx_tcp") return std::make_unique<GrpcWire>("lo");
  if (transport == "ucx_shm") return std::make_unique<GrpcWire>("shm");
  return std::make_unique<FileWire>();
}

std::string RandomBytes(uint64_t seed, size_t bytes) {
  SplitMix64 random(seed);
  std::string out(bytes, '\0');
  for (char& c : out) c = static_cast<char>(random.Next());
  return out;
}

class TransportTest : public testing::TestWithParam<std::string> {
 protected:
  // As reports call it.
  static std::string transport() { return GetParam().substr(0, GetParam().find('_')); }
  // Stores objects, and returns their ids.
  std::vector<std::string> PutObjects(const std::vector<std::string>& objects) {
    std::vector<std::string> ids;
    for (const std::string& object : objects) {
      ids.push_back(Sha256(object));
      wire_->Put(ids.back(), object);
    }
    return ids;
  }
  FetchEnd Fetch(Transport* transport, const std::vector<std::string>& ids,
                 HolderLimits limits = kPatientLimits, rpc::Cancel* cancel = nullptr) {
    HolderHistory history(limits);
    WantedObjects wanted(
        ids,
        [&](const std::string& id, absl::string_view object) {
          EXPECT_EQ(Sha256(object), id);
          taken_.insert({id, std::string(object)});
          return handler_;
        },
        [](uint64_t) {});
    const std::unique_ptr<WholeVersion> whole = wire_->PutWhole(ids);
    FetchEnd end = transport->Fetch({.version = kWireVersion,
                                     .whole = whole.get(),
                                     .key = "holder",
                                     .name = "the holder",
                                     .history = &history,
                                     .cancel = cancel},
                                    &wanted);
    not_arrived_ = wanted.ListNotArrived();
    return end;
  }

  const std::unique_ptr<Wire> wire_ = MakeWire(GetParam());
  absl::Status handler_;                           // What the taker returns.
  std::multimap<std::string, std::string> taken_;  // By id.
  std::vector<std::string> not_arrived_;
};

TEST_P(TransportTest, ObjectsOfAllSizesArriveWholeAndEqual) {
  std::vector<std::string> objects = {"x", RandomBytes(1, 100), RandomBytes(2, 256 << 10),
                                      RandomBytes(3, (256 << 10) + 1)};
  for (uint64_t i = 0; i < 300; ++i) objects.push_back(RandomBytes(i, 50 + i));
  const std::vector<std::string> ids = PutObjects(objects);
  const auto transport = wire_->Connect();
  EXPECT_EQ(transport->caps().name, TransportTest::transport());

  EXPECT_EQ(Fetch(transport.get(), ids).status, absl::OkStatus());
  EXPECT_EQ(taken_.size(), objects.size());
  for (size_t i = 0; i < ids.size(); ++i) EXPECT_EQ(taken_.find(ids[i])->second, objects[i]) << i;
  EXPECT_TRUE(not_arrived_.empty());
}

TEST_P(TransportTest, AnObjectAboveTheMessageLimitArrives) {
  const std::vector<std::string> ids = PutObjects({RandomBytes(1, (9 << 20) + 5)});
  EXPECT_EQ(Fetch(wire_->Connect().get(), ids).status, absl::OkStatus());
  EXPECT_EQ(taken_.size(), 1u);
}

// Chunks of equal bytes have one id.
TEST_P(TransportTest, AnObjectThatIsAskedForTwiceComesTwice) {
  const std::string id = PutObjects({"same"})[0];
  EXPECT_EQ(Fetch(wire_->Connect().get(), {id, id}).status, absl::OkStatus());
  EXPECT_EQ(taken_.count(id), 2u);
}

TEST_P(TransportTest, OneConnectionServesManyRequests) {
  const auto transport = wire_->Connect();
  for (uint64_t i = 0; i < 20; ++i) {
    const std::vector<std::string> ids = PutObjects({RandomBytes(i, 1000)});
    EXPECT_EQ(Fetch(transport.get(), ids).status, absl::OkStatus()) << i;
  }
  EXPECT_EQ(taken_.size(), 20u);
}

TEST_P(TransportTest, WhatIsMissingIsNamedAndTheOthersCome) {
  std::vector<std::string> ids = PutObjects({"one", "two"});
  const std::string missing = Sha256("three");
  ids.insert(ids.begin() + 1, missing);
  const FetchEnd end = Fetch(wire_->Connect().get(), ids);
  EXPECT_TRUE(absl::IsNotFound(end.status)) << end.status;
  EXPECT_EQ(end.fault, std::nullopt);
  EXPECT_THAT(end.status.message(), testing::HasSubstr(ShortObjectId(missing)));
  EXPECT_EQ(taken_.size(), 2u);
  EXPECT_THAT(not_arrived_, testing::ElementsAre(missing));
}

TEST_P(TransportTest, BytesThatAreNotThoseThatWereNamedAreALie) {
  const std::string right = RandomBytes(1, 5000);
  std::string flipped = right;
  flipped[1234] ^= 4;
  for (const std::string& wrong :
       {flipped, right.substr(0, 2500), right + "x", RandomBytes(2, 5000)}) {
    wire_->Put(Sha256(right), wrong);
    const FetchEnd end = Fetch(wire_->Connect().get(), {Sha256(right)});
    EXPECT_TRUE(absl::IsDataLoss(end.status)) << end.status;
    EXPECT_EQ(end.fault, HolderFault::kLied);
    EXPECT_TRUE(taken_.empty()) << "the taker saw wrong bytes";
  }
}

TEST_P(TransportTest, AnErrorOfTheTakerEndsTheFetchWithIt) {
  const std::vector<std::string> ids = PutObjects({"one", "two", "three"});
  handler_ = absl::InvalidArgumentError("no");
  EXPECT_EQ(Fetch(wire_->Connect().get(), ids).status, handler_);
  EXPECT_EQ(taken_.size(), 1u);
}

TEST_P(TransportTest, ASilentHolderIsLeftInItsTime) {
  const auto transport = wire_->ConnectToSilence();
  for (int turn = 0; turn < 2; ++turn) {
    const FetchEnd end = Fetch(transport.get(), {Sha256("x")}, {.silent = absl::Milliseconds(50)});
    EXPECT_FALSE(end.status.ok());
    // A connection that has fallen silent may be gone at the second time.
    if (turn == 0) {
      EXPECT_EQ(end.fault, HolderFault::kSilent) << end.status;
    }
    EXPECT_NE(end.fault, std::nullopt);
  }
}

TEST_P(TransportTest, ACancelEndsAFetchThatWaitsForASilentHolder) {
  const auto transport = wire_->ConnectToSilence();
  rpc::Cancel cancel;
  std::thread canceller([&] { cancel.Trigger(); });
  const FetchEnd end = Fetch(transport.get(), {Sha256("x")}, {.silent = absl::Hours(1)}, &cancel);
  canceller.join();
  EXPECT_TRUE(absl::IsCancelled(end.status)) << end.status;
  EXPECT_TRUE(absl::IsCancelled(
      Fetch(wire_->ConnectToSilence().get(), {Sha256("x")}, {.silent = absl::Hours(1)}, &cancel)
          .status))
      << "it was cancelled before";
}

TEST_P(TransportTest, WhatIsComingIsWaitedForAndComesWhenItIsThere) {
  if (wire_->source() == nullptr) {
    EXPECT_FALSE(wire_->Connect()->caps().waits);
    return;
  }
  EXPECT_TRUE(wire_->Connect()->caps().waits);
  const std::string object = RandomBytes(1, 3000), id = Sha256(object);
  const std::vector<std::string> here = PutObjects({"here"});
  wire_->source()->Expect(id);
  std::thread sender([&] {
    while (wire_->source()->looked_in_vain() == 0) std::this_thread::yield();
    wire_->Put(id, object);
  });
  EXPECT_EQ(Fetch(wire_->Connect().get(), {id, here[0]}).status, absl::OkStatus());
  sender.join();
  EXPECT_EQ(taken_.size(), 2u);
}

TEST_P(TransportTest, AHolderThatWaitsTooLongItselfIsLeft) {
  if (wire_->source() == nullptr) return;
  wire_->source()->Expect(Sha256("never"));
  const FetchEnd end = Fetch(wire_->Connect().get(), {Sha256("never")},
                             {.silent = absl::Seconds(30), .starved = absl::Milliseconds(300)});
  EXPECT_TRUE(absl::IsUnavailable(end.status)) << end.status;
  EXPECT_EQ(end.fault, HolderFault::kStarved);
}

// What a holder with a fault does not give comes from the next one, and nothing comes twice.
class TransportFallbackTest : public TransportTest {
 protected:
  // Fetches from the holder of the wire, and then from a good one by calls, which is the trainer.
  absl::Status FetchWithFallback(std::shared_ptr<Transport> first,
                                 const std::vector<std::string>& ids,
                                 HolderLimits limits = kPatientLimits) {
    HolderHistory history(limits);
    ObjectFetcher fetcher(
        {.caller = kWireCaller,
         .version = kWireVersion,
         .holders = {{.id = "first", .transport = std::move(first), .why = "it is first"},
                     {.id = std::string(kOriginId),
                      .transport = std::make_shared<GrpcTransport>(trainer_.channel(), kWireCaller),
                      .why = "it is last"}},
         .history = &history});
    const std::unique_ptr<WholeVersion> whole = wire_->PutWhole(ids);
    const auto take = [&](absl::string_view object) {
      taken_.insert({Sha256(object), std::string(object)});
      return absl::OkStatus();
    };
    const absl::Status fetched = fetcher.Fetch(ids, take, whole.get());
    stats_ = fetcher.stats();
    return fetched;
  }

  WireServer trainer_;
  ObjectFetcher::Stats stats_;
};

TEST_P(TransportFallbackTest, WhatIsMissingOrDamagedComesFromTheNextHolder) {
  for (const bool damaged : {false, true}) {
    taken_.clear();
    std::vector<std::string> objects, ids;
    uint64_t after = 0;  // Bytes of the objects from the bad one on.
    for (uint64_t i = 0; i < 10; ++i) {
      objects.push_back(RandomBytes(100 * damaged + i, 2000));
      ids.push_back(Sha256(objects.back()));
      trainer_.source().Put(ids.back(), objects.back());
      if (i != 5) wire_->Put(ids.back(), objects.back());
      else if (damaged) wire_->Put(ids.back(), "other bytes");
      after += i >= 5 ? objects.back().size() : 0;
    }
    EXPECT_EQ(FetchWithFallback(wire_->Connect(), ids), absl::OkStatus());
    EXPECT_EQ(taken_.size(), ids.size());
    EXPECT_EQ(stats_.holders_left, damaged ? 1 : 0) << stats_.last_fault;
    if (damaged) {
      EXPECT_THAT(stats_.last_fault, testing::HasSubstr("lied"));
    }
    EXPECT_EQ(stats_.used, 20'000u) << "nothing is taken twice";
    if (GetParam() != "grpc") {
      EXPECT_EQ(stats_.used_by_transport["grpc"], damaged ? after : 2000u);
      EXPECT_EQ(stats_.used_by_transport[transport()], damaged ? 20'000 - after : 18'000u);
    }
    EXPECT_EQ(stats_.parent, kOriginId);
    EXPECT_EQ(stats_.why, "it is last");
  }
}

TEST_P(TransportFallbackTest, ASilentHolderIsLeftForTheNextOne) {
  const std::string object = RandomBytes(1, 5000);
  trainer_.source().Put(Sha256(object), object);
  EXPECT_EQ(FetchWithFallback(wire_->ConnectToSilence(), {Sha256(object)},
                              {.silent = absl::Milliseconds(50)}),
            absl::OkStatus());
  EXPECT_EQ(taken_.size(), 1u);
  EXPECT_EQ(stats_.holders_left, 1);
  EXPECT_THAT(stats_.last_fault, testing::HasSubstr("silent"));
}

// Answers calls at once, with nothing, and cancels the download then.
class UselessTransport : public Transport {
 public:
  explicit UselessTransport(rpc::Cancel* cancel) : cancel_(cancel) {}
  const TransportCaps& caps() const override { return kGrpcCaps; }
  FetchEnd Fetch(const FetchTerms&, WantedObjects*) override {
    return {absl::UnavailableError("it has nothing"), HolderFault::kGone};
  }
  absl::Status Call(const google::protobuf::Message&, google::protobuf::Message*,
                    const rpc::CallOptions&) override {
    cancel_->Trigger();
    return absl::OkStatus();
  }

 private:
  rpc::Cancel* const cancel_;
};

TEST(ObjectFetcherTest, ADownloadThatIsCancelledInAUselessAnswerIsCancelled) {
  rpc::Cancel cancel;
  HolderHistory history;
  const auto useless = std::make_shared<UselessTransport>(&cancel);
  ObjectFetcher fetcher(
      {.caller = kWireCaller,
       .version = kWireVersion,
       .holders = {{.id = "one", .transport = useless}, {.id = "other", .transport = useless}},
       .history = &history,
       .cancel = &cancel});
  weights::v1::ListResponse list;
  const auto lister = fetcher.AskForList(weights::v1::ListRequest(), &list, [] { return false; });
  EXPECT_TRUE(absl::IsCancelled(lister.status())) << lister.status();
}

const auto kTransports = testing::Values("grpc", "shm", "file", "c10d"
#ifdef SLUICE_UCX
                                         ,
                                         "ucx_tcp", "ucx_shm"
#endif
);
const auto TransportName = [](const auto& info) { return info.param; };
INSTANTIATE_TEST_SUITE_P(Each, TransportTest, kTransports, TransportName);
INSTANTIATE_TEST_SUITE_P(Each, TransportFallbackTest, kTransports, TransportName);

}  // namespace
}  // namespace sluice
