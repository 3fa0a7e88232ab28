#include "common/rpc/payload.h"

#include <gmock/gmock.h>
#include <google/protobuf/unknown_field_set.h>
#include <grpcpp/support/byte_buffer.h>
#include <gtest/gtest.h>

#include <random>

#include "absl/strings/str_cat.h"
#include "common/base/digest.h"
#include "common/base/status.h"
#include "sluice/queue/v1/queue.pb.h"

namespace sluice::rpc {
namespace {

using queue::v1::PutHeader;
using queue::v1::PutMessage;

std::string Flat(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  EXPECT_TRUE(buffer.Dump(&slices).ok());
  std::string flat;
  for (const grpc::Slice& slice : slices)
    flat.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  return flat;
}

// Returns `bytes` in slices of `step` bytes, as a network might deliver them.
grpc::ByteBuffer Cut(const std::string& bytes, size_t step) {
  std::vector<grpc::Slice> slices;
  for (size_t at = 0; at < bytes.size(); at += step) slices.emplace_back(bytes.substr(at, step));
  return grpc::ByteBuffer(slices.data(), slices.size());
}

std::string Joined(const Frame& frame) {
  std::string joined;
  for (absl::string_view piece : frame.payload()) absl::StrAppend(&joined, piece);
  return joined;
}

PutHeader Header(uint64_t seq) {
  PutHeader header;
  header.set_seq(seq);
  header.add_records()->mutable_owner()->set_group(std::string(16, 'g'));
  return header;
}

TEST(PayloadTest, WhatIsSentIsTheGeneratedMessage) {
  auto owner = std::make_shared<const std::string>(10'000, 'x');
  const PayloadSlice slices[] = {{"abc", nullptr}, {*owner, owner}, {"", nullptr}, {"de", nullptr}};
  const auto buffer = EncodeFrame(Header(7), slices);
  ASSERT_TRUE(buffer.ok());

  PutMessage parsed;
  ASSERT_TRUE(parsed.ParseFromString(Flat(*buffer)));
  EXPECT_EQ(parsed.header().SerializeAsString(), Header(7).SerializeAsString());
  EXPECT_EQ(parsed.payload(), absl::StrCat("abc", *owner, "de"));
}

TEST(PayloadTest, BorrowedBytesKeepTheirOwnerUntilTheBufferIsGone) {
  auto owner = std::make_shared<const std::string>(10'000, 'x');
  std::weak_ptr<const std::string> watched = owner;
  {
    const PayloadSlice slices[] = {{*owner, owner}};
    auto buffer = EncodeFrame(Header(1), slices);
    ASSERT_TRUE(buffer.ok());
  }

  EXPECT_EQ(owner.use_count(), 1);
  owner.reset();
  EXPECT_TRUE(watched.expired());
}

TEST(PayloadTest, WhatGeneratedCodeSendsIsReadHoweverItIsCut) {
  PutMessage message;
  *message.mutable_header() = Header(7);
  message.set_payload(std::string(1000, 'p') + "end");
  const std::string bytes = message.SerializeAsString();

  for (size_t step : {1ul, 2ul, 3ul, 7ul, 64ul, bytes.size()}) {
    Frame frame;
    ASSERT_TRUE(DecodeFrame(Cut(bytes, step), &frame).ok()) << step;
    PutHeader header;
    ASSERT_TRUE(frame.ParseHeader(&header).ok());
    EXPECT_EQ(header.seq(), 7u);
    EXPECT_EQ(Joined(frame), message.payload());
    EXPECT_EQ(frame.payload_bytes(), message.payload().size());
  }
}

TEST(PayloadTest, OfRepeatedHeadersTheLastCountsAndPayloadsAreJoined) {
  PutMessage first, second;
  *first.mutable_header() = Header(1);
  first.set_payload("ab");
  *second.mutable_header() = Header(2);
  second.set_payload("cd");
  PutMessage payload_first;
  payload_first.set_payload("_");

  Frame frame;
  const std::string bytes =
      payload_first.SerializeAsString() + first.SerializeAsString() + second.SerializeAsString();
  ASSERT_TRUE(DecodeFrame(Cut(bytes, 3), &frame).ok());

  PutHeader header;
  ASSERT_TRUE(frame.ParseHeader(&header).ok());
  EXPECT_EQ(header.seq(), 2u);
  EXPECT_EQ(Joined(frame), "_abcd");
}

TEST(PayloadTest, UnknownFieldsOfEachWireTypeAreSkipped) {
  google::protobuf::UnknownFieldSet unknown;
  unknown.AddVarint(9, ~0ull);
  unknown.AddFixed32(10, 1);
  unknown.AddFixed64(11, 2);
  unknown.AddLengthDelimited(2000, "text");
  std::string bytes;
  ASSERT_TRUE(unknown.SerializeToString(&bytes));
  PutMessage message;
  message.set_payload("ab");

  Frame frame;
  ASSERT_TRUE(DecodeFrame(Cut(bytes + message.SerializeAsString(), 5), &frame).ok());
  EXPECT_EQ(Joined(frame), "ab");
}

TEST(PayloadTest, EveryMessageCutShortIsRefusedOrReadAsAShorterWhole) {
  PutMessage message;
  *message.mutable_header() = Header(300);
  message.set_payload(std::string(200, 'p'));
  const std::string bytes = message.SerializeAsString();

  for (size_t length = 0; length < bytes.size(); ++length) {
    Frame frame;
    const absl::Status status = DecodeFrame(Cut(bytes.substr(0, length), 16), &frame);
    PutMessage generated;
    EXPECT_EQ(status.ok(), generated.ParseFromString(bytes.substr(0, length))) << length;
    if (!status.ok()) {
      EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    }
  }
}

TEST(PayloadTest, RandomBytesNeverReadBeyondTheirEnd) {
  for (uint32_t seed = 0; seed < 2000; ++seed) {
    std::mt19937 random(seed);
    std::string bytes(random() % 64, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());

    Frame frame;
    if (!DecodeFrame(Cut(bytes, 1 + random() % 8), &frame).ok()) continue;
    PutMessage generated;
    if (generated.ParseFromString(bytes)) {
      EXPECT_EQ(Joined(frame), generated.payload()) << "seed " << seed;
    }
  }
}

TEST(PayloadTest, AWrongWireTypeOfAKnownFieldIsRefused) {
  Frame frame;
  // The header field, but as a varint.
  EXPECT_EQ(DecodeFrame(Cut("\x08\x01", 1), &frame).code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(DecodeFrame(Cut("\x7d\x01\x02\x03\x04", 1), &frame).code(),
            absl::StatusCode::kInvalidArgument);
}

TEST(PayloadTest, LimitsAreStatedInTheError) {
  const std::string big(kMaxPayloadBytes + 1, 'x');
  const PayloadSlice slices[] = {{big, nullptr}};
  const auto sent = EncodeFrame(PutHeader(), slices);

  EXPECT_EQ(sent.status().code(), absl::StatusCode::kResourceExhausted);
  EXPECT_THAT(std::string(sent.status().message()),
              testing::HasSubstr("4194305 bytes; the limit is 4194304"));

  PutMessage message;
  message.set_payload(big);

  Frame frame;
  EXPECT_EQ(DecodeFrame(Cut(message.SerializeAsString(), 1 << 20), &frame).code(),
            absl::StatusCode::kResourceExhausted);
}

TEST(PayloadTest, TheReaderCopiesAcrossSlicesWithTheCrc) {
  PutMessage message;
  message.set_payload("the quick brown fox jumps");
  Frame frame;
  ASSERT_TRUE(DecodeFrame(Cut(message.SerializeAsString(), 4), &frame).ok());
  PayloadReader reader(frame);

  char first[9], second[16];
  EXPECT_EQ(*reader.Copy(9, first), Crc32c("the quick"));
  EXPECT_EQ(*reader.Copy(16, second), Crc32c(" brown fox jumps"));
  EXPECT_EQ(std::string(second, 16), " brown fox jumps");
  EXPECT_EQ(reader.left(), 0u);
  EXPECT_TRUE(reader.Copy(0, first).ok());
  EXPECT_EQ(reader.Copy(1, first).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(PayloadTest, AMessageMayNameSharedMemoryInPlaceOfPayload) {
  const shm::Slice slices[] = {
      {.segment = 3, .block = 64, .offset = 128, .length = 1000, .generation = 7},
      {.segment = 4, .block = 0, .offset = 64, .length = 0, .generation = 8}};
  const auto buffer = EncodeSharedFrame(Header(7), slices);
  ASSERT_TRUE(buffer.ok());

  PutMessage parsed;
  ASSERT_TRUE(parsed.ParseFromString(Flat(*buffer)));
  EXPECT_EQ(parsed.header().SerializeAsString(), Header(7).SerializeAsString());
  ASSERT_EQ(parsed.shared_size(), 2);
  EXPECT_EQ(parsed.shared(0).generation(), 7u);

  Frame frame;
  ASSERT_TRUE(DecodeFrame(Cut(Flat(*buffer), 3), &frame).ok());
  ASSERT_EQ(frame.shared().size(), 2u);
  EXPECT_EQ(frame.shared()[0].block, 64u);
  EXPECT_EQ(frame.shared()[0].offset, 128u);
  EXPECT_EQ(frame.shared()[0].length, 1000u);
  EXPECT_EQ(frame.shared()[1].segment, 4u);
  EXPECT_EQ(frame.payload_bytes(), 0u);

  const std::string mapped(1000, 'x');
  frame.Resolve({mapped, ""}, nullptr);
  EXPECT_EQ(frame.payload_bytes(), 1000u);
  EXPECT_EQ(Joined(frame), mapped);
}

TEST(PayloadTest, NamesOfSharedMemoryBesidePayloadOrBeyondTheLimitAreRefused) {
  PutMessage both;
  both.set_payload("x");
  both.add_shared()->set_length(1);
  Frame frame;
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeFrame(Cut(both.SerializeAsString(), 100), &frame)));

  PutMessage large;
  for (int i = 0; i < 2; ++i) large.add_shared()->set_length(kMaxSharedBytes / 2 + 1);
  EXPECT_TRUE(absl::IsResourceExhausted(DecodeFrame(Cut(large.SerializeAsString(), 100), &frame)));

  large.mutable_shared(1)->set_length(~uint64_t{0});  // The sum of the lengths would overflow.
  EXPECT_FALSE(DecodeFrame(Cut(large.SerializeAsString(), 100), &frame).ok());

  const std::string not_a_slice = "\x1a\x03\xff\xff\xff";
  EXPECT_TRUE(absl::IsInvalidArgument(DecodeFrame(Cut(not_a_slice, 100), &frame)));
}

}  // namespace
}  // namespace sluice::rpc
