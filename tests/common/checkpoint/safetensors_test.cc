#include "common/checkpoint/safetensors.h"
#include "common/testing/data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/file.h"

namespace sluice {
namespace {

using testing::HasSubstr;

std::string TempFile(const std::string& name) { return testing_data::TempPath(name); }

std::string Length(uint64_t n) {
  std::string out;
  for (int i = 0; i < 8; ++i) out.push_back(static_cast<char>(n >> (8 * i)));
  return out;
}
std::string File(const std::string& header, const std::string& data) {
  return Length(header.size()) + header + data;
}

// Returns the error for a file with these bytes.
std::string ParseRefusal(const std::string& bytes) {
  const std::string path = TempFile("hostile.safetensors");
  EXPECT_TRUE(WriteFileAtomic(path, bytes).ok());
  const absl::Status status = ReadSafetensors(path).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr(path));
  return std::string(status.message());
}
std::string RefusalOf(const std::string& entries, const std::string& data) {
  return ParseRefusal(File("{" + entries + "}", data));
}

TEST(SafetensorsTest, WhatWasWrittenIsReadBack) {
  TensorSet set = *TensorSet::Create({{"b", DType::kF32, {2, 2}},
                                      {"a", DType::kBF16, {3}},
                                      {"none", DType::kF32, {0, 4}},
                                      {"one", DType::kI64, {}}});
  set.as<float>(1)[3] = 2.5f;
  set.as<uint16_t>(0)[2] = 0x3f80;
  set.as<int64_t>(3)[0] = -7;

  const std::string path = TempFile("round.safetensors"), again = TempFile("again.safetensors");
  ASSERT_TRUE(WriteSafetensors(path, set, {{"format", "pt"}}).ok());
  const auto read = ReadSafetensors(path);
  ASSERT_TRUE(read.ok()) << read.status();

  EXPECT_EQ(read->layout_id(), set.layout_id());
  EXPECT_EQ(read->buffer(), set.buffer());
  EXPECT_EQ(SafetensorsFile::Open(path)->metadata().at("format"), "pt");
  ASSERT_TRUE(WriteSafetensors(again, *read, {{"format", "pt"}}).ok());
  EXPECT_EQ(*ReadFile(path), *ReadFile(again));
}

TEST(SafetensorsTest, AHeaderOfWrongLengthIsRefused) {
  EXPECT_THAT(ParseRefusal(""), HasSubstr("has 0 bytes"));
  EXPECT_THAT(ParseRefusal(Length(uint64_t{1} << 63)),
              HasSubstr("header has 9223372036854775808 bytes; the limit is 16777216"));
  EXPECT_THAT(ParseRefusal(Length(100) + "{}"),
              HasSubstr("is truncated: it has 10 bytes, but its header ends at 108"));
}

TEST(SafetensorsTest, AHeaderThatIsNoFlatJsonObjectIsRefused) {
  EXPECT_THAT(ParseRefusal(File("{", "")), HasSubstr("parse error"));
  EXPECT_THAT(ParseRefusal(File("[]", "")), HasSubstr("not a JSON object"));
  EXPECT_THAT(RefusalOf(R"("a": [[[[[1]]]]])", ""), HasSubstr("nested deeper than 4"));
  EXPECT_THAT(ParseRefusal(File(std::string(100000, '['), "")), HasSubstr("nested deeper than 4"));
  EXPECT_THAT(RefusalOf(R"("__metadata__": {"a": 1})", ""),
              HasSubstr("__metadata__.a is not a string"));
  EXPECT_THAT(
      RefusalOf(
          R"("a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}, "a": {"dtype": "F32", )"
          R"("shape": [1], "data_offsets": [4, 8]})",
          std::string(8, 'x')),
      HasSubstr("key \"a\" occurs twice"));
}

TEST(SafetensorsTest, AMalformedTensorIsRefusedByName) {
  EXPECT_THAT(RefusalOf(R"("w": {"dtype": "F32", "shape": [1]})", ""),
              HasSubstr("tensor w: has no data_offsets"));
  EXPECT_THAT(RefusalOf(R"("w": {"dtype": "F33", "shape": [1], "data_offsets": [0, 4]})", "xxxx"),
              HasSubstr("unknown dtype \"F33\""));
  EXPECT_THAT(RefusalOf(R"("w": {"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]})", "xxxx"),
              HasSubstr("shape holds -1"));
  EXPECT_THAT(RefusalOf(R"("w": {"dtype": "F32", "shape": [1.5], "data_offsets": [0, 4]})", "xxxx"),
              HasSubstr("shape holds 1.5"));
  EXPECT_THAT(
      RefusalOf(
          R"("w": {"dtype": "F32", "shape": [4294967296, 4294967296], "data_offsets": [0, 4]})",
          "xxxx"),
      HasSubstr("more than 2^62"));
  EXPECT_THAT(RefusalOf(R"("w": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]})", "xxxx"),
              HasSubstr("F32 [2] needs 8 bytes, but data_offsets give 4"));
  EXPECT_THAT(RefusalOf(R"("w": {"dtype": "F32", "shape": [1], "data_offsets": [4, 0]})", "xxxx"),
              HasSubstr("do not lie in"));
  EXPECT_THAT(RefusalOf(R"("a b": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]})", "xxxx"),
              HasSubstr("space or control"));
}

TEST(SafetensorsTest, HolesOverlapsAndTruncationAreRefused) {
  const auto two = [](int begin, int end) {
    return R"("a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "b": {"dtype": "F32", )"
           R"("shape": [2], "data_offsets": [)" +
           std::to_string(begin) + ", " + std::to_string(end) + "]}";
  };

  EXPECT_THAT(RefusalOf(two(4, 12), std::string(12, 'x')), HasSubstr("tensor b starts at byte"));
  EXPECT_THAT(RefusalOf(two(4, 12), std::string(12, 'x')),
              HasSubstr("inside the tensor before it"));
  EXPECT_THAT(RefusalOf(two(12, 20), std::string(20, 'x')), HasSubstr("after a hole"));
  EXPECT_THAT(RefusalOf(two(8, 16), std::string(15, 'x')),
              HasSubstr("do not lie in the file's 15 bytes of data"));
  EXPECT_THAT(RefusalOf(two(8, 16), std::string(17, 'x')),
              HasSubstr("the last tensor ends at byte"));
}

TEST(SafetensorsTest, AMissingFileAndADirectoryAreToldApart) {
  EXPECT_EQ(ReadSafetensors(TempFile("nowhere.safetensors")).status().code(),
            absl::StatusCode::kNotFound);
  EXPECT_EQ(ReadSafetensors(testing::TempDir()).status().code(),
            absl::StatusCode::kFailedPrecondition);
}

}  // namespace
}  // namespace sluice
