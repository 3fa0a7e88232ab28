#include <map>
#include <random>

#include "absl/strings/str_cat.h"
#include "common/queue_client/attachment.h"
#include "tests/services/queue/wire.h"

// Payload of every kind, in messages and through shared memory, and how the queue treats clients
// that misuse shared memory.
namespace sluice::queue {
namespace {

struct FieldSpec {
  std::string name;
  common::v1::Dtype dtype;
  std::vector<int64_t> shape;
  size_t bytes;
  std::vector<uint32_t> rows;
};

// Random bytes, except that floats are finite.
std::string RandomBytes(const FieldSpec& spec, std::mt19937* random) {
  std::string bytes(spec.bytes, '\0');
  const bool floats = spec.dtype == common::v1::DTYPE_F32 || spec.dtype == common::v1::DTYPE_F64;
  for (size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<char>((*random)() & (floats && i % 4 == 3 ? 0x3f : 0xff));
  return bytes;
}

// How payload goes: in messages because the client wants it so, in messages because the queue
// shares no memory, or through shared memory.
enum class Path { kMessages, kNotShared, kShared };

class PayloadTest : public WireTest, public testing::WithParamInterface<Path> {
 protected:
  void SetUp() override {
    token_bytes_ = 30'000;  // 30 MB a member.
    ASSERT_NO_FATAL_FAILURE(WireTest::SetUp());
    if (GetParam() != Path::kNotShared) {
      ASSERT_TRUE(server_.ShareMemory(rpc_->address()).ok());
    }
    Begin();
    admitted_ = Admitted(1);
    client_ = std::make_unique<QueueClient>(
        channel_, QueueClient::Options{.job = kJob,
                                       .worker = "r1",
                                       .incarnation = rollout_incarnation_,
                                       .shared_memory = GetParam() != Path::kMessages});
  }

  const v1::Grant& grant() const { return admitted_.grants(0); }
  const v1::Member& member() const { return grant().members(0); }

  // A record for whole fields of the member, which has none yet.
  common::v1::Record Whole() const {
    common::v1::Record record;
    *record.mutable_owner() = RefOf(grant(), member());
    record.set_lease(member().lease().id());
    return record;
  }

  // Puts a record with these fields and reads it back.
  void ExpectComesBack(common::v1::Record record, const std::vector<FieldSpec>& specs) {
    std::mt19937 random(7);
    std::map<std::string, std::string> sent;
    std::string payload;
    for (const FieldSpec& spec : specs) {
      const std::string& bytes = sent[spec.name] = RandomBytes(spec, &random);
      AddField(spec.name, spec.dtype, spec.shape, bytes, &record, &payload);
      record.mutable_fields(record.fields_size() - 1)
          ->mutable_rows()
          ->Add(spec.rows.begin(), spec.rows.end());
    }

    {
      sluice::PutStream stream(client_.get());
      ASSERT_TRUE(stream
                      .Put(record, payload,
                           [](const PutOutcome& outcome) {
                             EXPECT_TRUE(outcome.status.ok()) << outcome.status;
                           })
                      .ok());
      ASSERT_TRUE(stream.Flush(absl::Seconds(60)).ok());
    }

    common::v1::Want want;
    *want.mutable_owner() = record.owner();
    const auto read = client_->GetAll(member().lease().id(), {&want, 1});
    ASSERT_TRUE(read.ok()) << read.status();
    ASSERT_EQ(read->size(), 1u);
    ASSERT_EQ((*read)[0].fields.size(), specs.size());

    std::map<std::string, int> places;  // Whole fields come in the order of their names.
    const common::v1::Record& got = (*read)[0].record;
    for (int f = 0; f < got.fields_size(); ++f) places[got.fields(f).name()] = f;

    for (size_t f = 0; f < specs.size(); ++f) {
      const FieldSpec& spec = specs[f];
      ASSERT_TRUE(places.contains(spec.name)) << spec.name;
      const common::v1::Field& field = got.fields(places[spec.name]);
      EXPECT_TRUE((*read)[0].fields[places[spec.name]] == sent[spec.name]) << spec.name;
      EXPECT_EQ(field.dtype(), spec.dtype) << spec.name;
      EXPECT_EQ(std::vector<int64_t>(field.shape().begin(), field.shape().end()), spec.shape)
          << spec.name;
      EXPECT_EQ(std::vector<uint32_t>(field.rows().begin(), field.rows().end()), spec.rows)
          << spec.name;
      EXPECT_EQ(field.bytes(), spec.bytes) << spec.name;
      EXPECT_EQ(field.crc32c(), record.fields(static_cast<int>(f)).crc32c()) << spec.name;
    }
  }

  v1::AdmitResponse admitted_;
  std::unique_ptr<QueueClient> client_;
};

TEST_P(PayloadTest, FieldsOfEveryDtypeComeBackAsTheyWere) {
  std::vector<FieldSpec> specs;
  for (int dtype = common::v1::DTYPE_UNSPECIFIED; dtype <= common::v1::DTYPE_U64; ++dtype) {
    specs.push_back({absl::StrCat("of_", common::v1::Dtype_Name(dtype)),
                     static_cast<common::v1::Dtype>(dtype),
                     {3, 1024, 8},
                     3 * 1024 * 8,
                     {}});
  }

  ExpectComesBack(Whole(), specs);
}

TEST_P(PayloadTest, ImagesAudioAndLogitsOfRaggedShapesComeBackAsTheyWere) {
  ExpectComesBack(Whole(),
                  {{"images",
                    common::v1::DTYPE_U8,
                    {3, -1, -1, 3},
                    640 * 480 * 3 + 32 * 32 * 3 + 1,
                    {640 * 480 * 3, 32 * 32 * 3, 1}},
                   {"audio", common::v1::DTYPE_I16, {2, -1}, 2 * (16000 + 0), {32000, 0}},
                   {"teacher_logits", common::v1::DTYPE_BF16, {100, 500}, 100 * 500 * 2, {}},
                   {"nothing", common::v1::DTYPE_F32, {0}, 0, {}}});
}

TEST_P(PayloadTest, FieldsBeyondAMessageAreCutAndComeBackWhole) {
  ExpectComesBack(Whole(), {{"small", common::v1::DTYPE_U8, {100}, 100, {}},
                            {"video", common::v1::DTYPE_U8, {9 << 20}, 9 << 20, {}},
                            {"more", common::v1::DTYPE_F32, {1 << 20}, 4 << 20, {}},
                            {"odd", common::v1::DTYPE_U8, {(4 << 20) + 1}, (4 << 20) + 1, {}}});
}

TEST_P(PayloadTest, ARecordOfVeryManyFieldsIsCutBetweenThem) {
  std::vector<FieldSpec> specs;
  for (int i = 0; i < 20'000; ++i)
    specs.push_back({absl::StrCat("tiny", 100'000 + i), common::v1::DTYPE_U8, {1}, 1, {}});
  ExpectComesBack(Whole(), specs);
}

TEST_P(PayloadTest, ColumnsOfAPieceComeBackAsTheyWere) {
  constexpr uint32_t kTokens = 8192;
  std::vector<uint32_t> kept;
  size_t kept_bytes = 0;
  for (uint32_t i = 0; i < kTokens; ++i) kept_bytes += kept.emplace_back(i % 23);

  {
    sluice::PutStream stream(client_.get());
    ASSERT_TRUE(stream.Put(PromptRecord(grant(), member()), Column(3, 0), nullptr).ok());
    ASSERT_TRUE(stream.Flush(absl::Seconds(60)).ok());
  }

  common::v1::Record record = Whole();
  common::v1::Piece& piece = *record.mutable_piece();
  piece.set_at(3);
  piece.set_segment(1);
  piece.set_role(common::v1::SEGMENT_ROLE_SAMPLED);
  piece.set_trainable(true);
  piece.set_count(kTokens);
  piece.add_runs()->mutable_version()->set_incarnation(trainer_incarnation_);
  piece.mutable_runs(0)->set_count(kTokens);

  ExpectComesBack(record,
                  {{"tokens", common::v1::DTYPE_I32, {kTokens}, kTokens * 4, {}},
                   {"logprobs", common::v1::DTYPE_F32, {kTokens}, kTokens * 4, {}},
                   {"kept_tokens", common::v1::DTYPE_U8, {kTokens, -1}, kept_bytes, kept},
                   {"routing", common::v1::DTYPE_U16, {kTokens, 24, 4}, kTokens * 24 * 4 * 2, {}}});
}

INSTANTIATE_TEST_SUITE_P(Paths, PayloadTest,
                         testing::Values(Path::kMessages, Path::kNotShared, Path::kShared),
                         [](const auto& path) {
                           return std::string(path.param == Path::kMessages ? "InMessages"
                                              : path.param == Path::kNotShared
                                                  ? "OfAQueueThatSharesNone"
                                                  : "ThroughSharedMemory");
                         });

// In the tests below, the test itself is the client that attaches. --------------------------------

class SharedMemoryTest : public WireTest {
 protected:
  static constexpr uint64_t kBytes = 100'000;

  void SetUp() override {
    token_bytes_ = 1000;  // 1 MB a member.
    ASSERT_NO_FATAL_FAILURE(WireTest::SetUp());
    ASSERT_TRUE(server_.ShareMemory(rpc_->address()).ok());
    Begin();
    admitted_ = Admitted(1);
  }

  absl::StatusOr<std::shared_ptr<Attachment>> Attach(const std::string& worker,
                                                     int64_t incarnation) {
    common::v1::Call call;
    FillCall(worker, incarnation, &call);
    return Attachment::Attach(rpc_->address(), call);
  }

  const v1::Grant& grant() const { return admitted_.grants(0); }
  // The header of a message with one record, whose field is `bytes`.
  v1::PutHeader Header(const std::string& session, absl::string_view bytes) {
    v1::PutHeader header;
    FillCall("r1", rollout_incarnation_, header.mutable_call());
    header.set_seq(1);
    header.set_session(session);
    common::v1::Record& record = *header.add_records();
    *record.mutable_owner() = RefOf(grant(), grant().members(0));
    record.set_lease(grant().members(0).lease().id());
    std::string payload;
    AddField("field", common::v1::DTYPE_U8,
             std::vector<int64_t>{static_cast<int64_t>(bytes.size())}, bytes, &record, &payload);
    return header;
  }

  // Sends one message. Returns its ack, or how the stream ended.
  absl::StatusOr<v1::PutAck> PutOne(const v1::PutHeader& header, const shm::Slice& slice) {
    rpc::ClientStream stream(*channel_, *v1::PutMessage::descriptor());
    v1::PutAck ack;
    if (stream.WriteSharedFrame(header, {&slice, 1}).ok() && stream.Read(&ack)) return ack;
    return stream.Finish();
  }

  // Returns the first message of a Get by `session`.
  absl::StatusOr<rpc::Frame> GetOne(const std::string& session) {
    v1::GetRequest request;
    FillCall("r1", rollout_incarnation_, request.mutable_call());
    request.set_lease(grant().members(0).lease().id());
    *request.add_wants()->mutable_owner() = RefOf(grant(), grant().members(0));
    request.set_session(session);
    rpc::ClientStream stream(*channel_, *v1::GetRequest::descriptor());
    rpc::Frame frame;
    if (stream.Write(request) && stream.ReadFrame(&frame)) return frame;
    return stream.Finish();
  }

  v1::AdmitResponse admitted_;
};

TEST_F(SharedMemoryTest, MessagesNameMemoryAndCarryNoPayload) {
  const auto mine = Attach("r1", rollout_incarnation_);
  ASSERT_TRUE(mine.ok()) << mine.status();
  const std::string bytes(kBytes, 'x');
  const shm::Slice slice = *(*mine)->Allocate(kBytes);
  std::copy(bytes.begin(), bytes.end(), (*mine)->at(slice));

  const auto ack = PutOne(Header((*mine)->session(), bytes), slice);
  ASSERT_TRUE(ack.ok()) << ack.status();
  EXPECT_EQ(ack->failed_size(), 0);

  const auto frame = GetOne((*mine)->session());
  ASSERT_TRUE(frame.ok()) << frame.status();
  ASSERT_EQ(frame->shared().size(), 1u);
  EXPECT_EQ(frame->payload_bytes(), 0u);

  std::vector<std::shared_ptr<const shm::Segment>> segments;
  ASSERT_TRUE((*mine)->Map(frame->shared(), &segments).ok());
  EXPECT_TRUE(absl::string_view(segments[0]->data() + frame->shared()[0].offset, kBytes) == bytes);
  EXPECT_TRUE(Attachment::CheckNotRecycled(frame->shared(), segments).ok());

  // A client that is not attached gets the bytes.
  const auto plain = GetOne("");
  ASSERT_TRUE(plain.ok()) << plain.status();
  EXPECT_EQ(plain->payload_bytes(), kBytes);
}

TEST_F(SharedMemoryTest, AReaderIsToldThatItsMemoryWasUsedAgain) {
  const auto mine = Attach("r1", rollout_incarnation_);
  ASSERT_TRUE(mine.ok()) << mine.status();
  const shm::Slice slice = *(*mine)->Allocate(kBytes);
  std::fill_n((*mine)->at(slice), kBytes, 'x');
  ASSERT_TRUE(PutOne(Header((*mine)->session(), std::string(kBytes, 'x')), slice).ok());

  const auto frame = GetOne((*mine)->session());
  ASSERT_TRUE(frame.ok()) << frame.status();
  std::vector<std::shared_ptr<const shm::Segment>> segments;
  ASSERT_TRUE((*mine)->Map(frame->shared(), &segments).ok());

  v1::DropRequest drop;
  v1::DropItem& item = *drop.add_items();
  *item.mutable_ref() = RefOf(grant(), grant().members(0));
  item.set_lease(grant().members(0).lease().id());
  item.set_reason("env_lost");
  ASSERT_TRUE(Client("r1", rollout_incarnation_)->Drop(drop).ok());

  const auto runner = jobs_.Find(kJob);
  ASSERT_TRUE(runner.ok());
  ASSERT_TRUE(Becomes([&] { return (*runner)->arena()->use().used_bytes == 0; }))
      << "a reader holds nothing";
  EXPECT_EQ(ReasonOf(Attachment::CheckNotRecycled(frame->shared(), segments)), "RECYCLED");

  const std::shared_ptr<char> next = (*runner)->arena()->Allocate(kBytes);  // In the same place.
  EXPECT_EQ(ReasonOf(Attachment::CheckNotRecycled(frame->shared(), segments)), "RECYCLED");
}

TEST_F(SharedMemoryTest, NamesOfMemoryThatIsNotTheClientsAreRefused) {
  const auto mine = Attach("r1", rollout_incarnation_);
  ASSERT_TRUE(mine.ok()) << mine.status();
  const std::string bytes(kBytes, 'x');
  const shm::Slice good = *(*mine)->Allocate(kBytes);
  const auto refused = [&](const std::string& session, const shm::Slice& slice) {
    return PutOne(Header(session, bytes), slice).status();
  };

  // The buffer is segment 0, of 64 MiB. The second slice ends a byte behind it, and the end of the
  // third overflows.
  constexpr uint64_t kMost = ~uint64_t{0};
  for (const shm::Slice& bad : {shm::Slice{.segment = 1, .offset = good.offset, .length = kBytes},
                                shm::Slice{.offset = (64 << 20) - kBytes + 1, .length = kBytes},
                                shm::Slice{.offset = kMost - 10, .length = kBytes}}) {
    EXPECT_EQ(ReasonOf(refused((*mine)->session(), bad)), "BAD_SLICE");
  }
  EXPECT_EQ(ReasonOf(refused("", good)), "BAD_SLICE") << "without a session there is no memory";

  const auto others = Attach("w1", reward_incarnation_);
  ASSERT_TRUE(others.ok()) << others.status();
  EXPECT_EQ(ReasonOf(refused((*others)->session(), good)), "NO_SESSION");
  EXPECT_EQ(ReasonOf(refused(std::string(16, 's'), good)), "NO_SESSION");
}

TEST_F(SharedMemoryTest, BytesThatAreNotWhatTheMessageSaysAreRefused) {
  const auto mine = Attach("r1", rollout_incarnation_);
  ASSERT_TRUE(mine.ok()) << mine.status();
  const shm::Slice slice = *(*mine)->Allocate(kBytes);
  std::fill_n((*mine)->at(slice), kBytes, 'y');  // The header has the CRC of other bytes.

  const auto ack = PutOne(Header((*mine)->session(), std::string(kBytes, 'x')), slice);
  ASSERT_TRUE(ack.ok()) << ack.status();
  ASSERT_EQ(ack->failed_size(), 1);
  EXPECT_EQ(ack->failed(0).reason(), "BAD_CRC");
}

TEST_F(SharedMemoryTest, WhoTheJobDoesNotKnowCannotAttach) {
  EXPECT_FALSE(Attach("r2", 1).ok());
  EXPECT_TRUE(Attach("r1", rollout_incarnation_).ok());
  EXPECT_EQ(Attach("r1", rollout_incarnation_ - 1).status().code(), absl::StatusCode::kAborted)
      << "fenced, as in any call";
}

TEST_F(SharedMemoryTest, AMemberCannotTakeMoreThanItReservedWhateverItClaims) {
  const auto client = Client("r1", rollout_incarnation_);
  sluice::PutStream stream(client.get());
  common::v1::Record record;
  *record.mutable_owner() = RefOf(grant(), grant().members(0));
  record.set_lease(grant().members(0).lease().id());
  std::string payload;
  AddField("field", common::v1::DTYPE_U8, std::vector<int64_t>{5 << 20}, std::string(5 << 20, 'x'),
           &record, &payload);

  absl::Status outcome;
  ASSERT_TRUE(
      stream.Put(record, payload, [&](const PutOutcome& put) { outcome = put.status; }).ok());
  ASSERT_TRUE(stream.Flush(absl::Seconds(60)).ok());

  EXPECT_EQ(ReasonOf(outcome), "OVER_RESERVATION");
  EXPECT_LT((*jobs_.Find(kJob))->arena()->use().used_bytes, 1u << 20);
}

}  // namespace
}  // namespace sluice::queue
