#include "services/queue/core/codec.h"

#include "common/base/id.h"
#include "tests/services/queue/core/harness.h"

namespace sluice::queue {
namespace {

Event SamplePut() {
  const TrajectoryRef ref{.group = {3, 7}, .member = 1, .attempt = 2};
  Id16 lease;
  lease.bytes.fill(0xAB);
  std::vector<VersionRun> runs = {{{1, 5}, 30, 0}, {{2, -1}, 2, 0}};
  // Durations are written exactly, to the quarter of a nanosecond.
  return {.now = absl::Seconds(1000) + absl::Nanoseconds(5) / 4,
          .call = 300,
          .caller = {"r1", 4},
          .input = Put{{PieceRecord(ref, lease, SegmentRole::kSampled, 4, 32, runs)}}};
}

TEST(CodecTest, EventsAreWrittenInTheseBytes) {
  const Encoded put = EncodeEvent(SamplePut(), Payload::kKept);
  EXPECT_EQ(ToHex(put.head),
            "8a80a2a9eae801ac02027231080201030701010200abababababababababababababababab010401000200"
            "200102020a1e0004010200000206746f6b656e7314"
            "014000008102423a42f0086c6f6770726f627318014000008102c95e156600");
  ASSERT_EQ(put.parts.size(), 2u);
  EXPECT_EQ(put.parts[0].size, 128u);

  EXPECT_EQ(
      ToHex(EncodeEvent({.now = absl::Milliseconds(1), .input = Tick{}}, Payload::kKept).head),
      "80a4e8030000000d");
  EXPECT_EQ(ToHex(EncodeEvent({.now = absl::ZeroDuration(), .input = Restarted{.incarnation = 9}},
                              Payload::kKept)
                      .head),
            "000000001009");

  EXPECT_EQ(kFormat, 1u);
}

TEST(CodecTest, AStateIsWrittenInTheseBytes) {
  Harness h;
  h.Start();
  h.RunStep();
  // If these bytes change, kFormat must change too, unless no build with this format was released.
  EXPECT_EQ(ToHex(Sha256(h.job().Dump(Payload::kKept).head)).substr(0, 16), "f935c75a131cbace");
}

TEST(CodecTest, PayloadIsSharedAndNotCopied) {
  const Event event = SamplePut();
  const Encoded encoded = EncodeEvent(event, Payload::kKept);
  const Field& tokens = std::get<Put>(event.input).records[0].fields[0];
  EXPECT_EQ(encoded.parts[0].data.get(), tokens.bytes.data.get());
  EXPECT_LT(encoded.head.size(), 200u);
}

TEST(CodecTest, LeftOutPayloadComesBackAsSizeAndChecksum) {
  const Event event = SamplePut();
  const Encoded encoded = EncodeEvent(event, Payload::kLeftOut);
  EXPECT_TRUE(encoded.parts.empty());

  const absl::StatusOr<Event> read = DecodeEvent(encoded.head, {});
  ASSERT_TRUE(read.ok()) << read.status();
  const Field& tokens = std::get<Put>(read->input).records[0].fields[0];

  const Field& written = std::get<Put>(event.input).records[0].fields[0];
  EXPECT_TRUE(tokens.bytes.lost());
  EXPECT_EQ(tokens.bytes.view(), "");
  EXPECT_TRUE(tokens.bytes == written.bytes);
}

// Each prefix is refused; any flipped bit is refused or gives an event that can be written again.
TEST(CodecTest, HostileBytesAreRefusedOrHarmless) {
  const Encoded encoded = EncodeEvent(SamplePut(), Payload::kKept);
  for (size_t n = 0; n < encoded.head.size(); ++n)
    EXPECT_FALSE(DecodeEvent(encoded.head.substr(0, n), AsRead(encoded)).ok()) << n;
  EXPECT_FALSE(DecodeEvent(encoded.head + '\0', AsRead(encoded)).ok());
  EXPECT_FALSE(DecodeEvent(encoded.head, {}).ok());

  for (size_t bit = 0; bit < 8 * encoded.head.size(); ++bit) {
    std::string flipped = encoded.head;
    flipped[bit / 8] = static_cast<char>(flipped[bit / 8] ^ 1 << bit % 8);
    const absl::StatusOr<Event> read = DecodeEvent(flipped, AsRead(encoded));
    if (read.ok()) EncodeEvent(*read, Payload::kKept);
  }

  std::string many(64, '\xFF');
  EXPECT_FALSE(DecodeEvent(many, {}).ok());
}

TEST(CodecTest, AHostileStateIsRefusedOrHarmless) {
  Harness h;
  h.Start();
  h.RunStep();
  const Encoded dump = h.job().Dump(Payload::kKept);
  const auto load = [&](const std::string& head) {
    Job job({.id = std::string(32, 'a'), .seed = 99}, h.spec(),
            std::make_shared<Rows>(std::vector<uint64_t>{1000}));
    return job.Load(head, AsRead(dump)).ok();
  };

  EXPECT_TRUE(load(dump.head));

  // Every place would take long, so only some are tried.
  for (size_t n = 0; n < dump.head.size(); n += 7) EXPECT_FALSE(load(dump.head.substr(0, n))) << n;

  for (size_t at = 0; at < dump.head.size(); at += 3) {
    std::string flipped = dump.head;
    flipped[at] = static_cast<char>(flipped[at] ^ 0x5A);
    load(flipped);
  }
}

TEST(CodecTest, EqualStatesAreEqualBytes) {
  std::string first;
  for (int run = 0; run < 2; ++run) {
    Harness h;
    h.Start();
    for (int i = 0; i < 3; ++i) h.RunStep();

    const std::string head = h.job().Dump(Payload::kKept).head;
    if (run == 0) first = head;
    EXPECT_TRUE(head == first);
  }
}

}  // namespace
}  // namespace sluice::queue
