// Files of Parquet and Arrow, and folders of Hugging Face datasets, against the same rows as JSON
// lines. pyarrow writes those that are not among the test data.

#include "common/data/columnar.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "common/base/file.h"
#include "common/base/splitmix.h"
#include "common/base/status.h"
#include "common/data/dataset.h"
#include "common/testing/data.h"
#include "nlohmann/json.hpp"

namespace sluice {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

// The layout of verl's files.
const std::map<std::string, std::string> kVerlFields = {
    {"prompt", "prompt"}, {"answer", "reward_model.ground_truth"}, {"extra_info", "extra_info"}};

absl::StatusOr<Dataset> Read(const std::string& path,
                             const std::map<std::string, std::string>& fields, bool skip = false,
                             uint64_t first_rows = 0) {
  return ReadDataset({.name = "rows",
                      .path = path,
                      .fields = fields,
                      .skip_bad_rows = skip,
                      .first_rows = first_rows});
}

void ExpectSameRows(const absl::StatusOr<Dataset>& read, const absl::StatusOr<Dataset>& expected) {
  ASSERT_TRUE(expected.ok()) << expected.status();
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->rows(), expected->rows());
  for (uint64_t i = 0; i < read->rows(); ++i) EXPECT_EQ(read->json(i), expected->json(i)) << i;
}

bool HasModule() { return fs::exists(absl::StrCat(SLUICE_BIN_DIR, "/libsluice_columnar.so")); }

std::string PythonCommand() {
  return absl::StrCat("PYTHONPATH=", fs::path(SLUICE_ARROW).parent_path().string(), " python3 ");
}

class ColumnarTest : public testing::Test {
 protected:
  void SetUp() override {
    if (!HasModule()) GTEST_SKIP() << "this build has no module for Parquet";
    static const bool has_python =
        std::system(absl::StrCat(PythonCommand(), "-c 'import pyarrow'").c_str()) == 0;
    if (!has_python) GTEST_SKIP() << "this Python cannot load pyarrow in " << SLUICE_ARROW;
    dir_ = testing_data::TempPath("columnar");
    fs::remove_all(dir_);
    fs::create_directories(dir_);
  }

  // Runs a script with pyarrow as `pa` and `pq`, in the test's folder.
  void Python(const std::string& script) {
    const std::string file = absl::StrCat(dir_, "/write.py");
    ASSERT_TRUE(WriteFileAtomic(file, absl::StrCat("import json, datetime, decimal\n"
                                                   "import pyarrow as pa, pyarrow.parquet as pq\n",
                                                   script))
                    .ok());
    const std::string command = absl::StrCat("cd ", dir_, " && ", PythonCommand(), "write.py");
    ASSERT_EQ(std::system(command.c_str()), 0);
  }
  std::string Path(const std::string& name) const { return absl::StrCat(dir_, "/", name); }

  std::string dir_;
};

class SharedFilesTest : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Of, SharedFilesTest,
                         testing::Values("gsm8k_200", "gsm8k_200_plain",
                                         "gsm8k_200_zstd_v2pages_rowgroups"));

TEST_P(SharedFilesTest, EveryEncodingHasTheRowsOfTheJsonLines) {
  if (!HasModule()) GTEST_SKIP() << "this build has no module for Parquet";
  SLUICE_NEEDS_TEST_DATA("datasets");
  const std::string folder = testing_data::Path("datasets");
  ExpectSameRows(Read(absl::StrCat(folder, "/", GetParam(), ".parquet"), kVerlFields),
                 Read(absl::StrCat(folder, "/gsm8k_200.jsonl"), kVerlFields));
}

TEST_F(ColumnarTest, NullsUnicodeAndLongTextsAreThoseOfTheJsonLines) {
  SLUICE_NEEDS_TEST_DATA("datasets");
  const std::string folder = testing_data::Path("datasets");
  const auto fields = kVerlFields;
  const auto expected = Read(absl::StrCat(folder, "/edge.jsonl"), fields, /*skip=*/true),
             read = Read(absl::StrCat(folder, "/edge.parquet"), fields, /*skip=*/true);
  ExpectSameRows(read, expected);
  EXPECT_EQ(read->skipped(), expected->skipped());
}

// Numbers, texts, lists and objects at random, with nulls, in several row groups.
TEST_F(ColumnarTest, RandomRowsComeBackFromParquetAndArrow) {
  for (uint64_t seed = 1; seed <= 5; ++seed) {
    SplitMix64 random(seed);
    nlohmann::json rows = nlohmann::json::array();
    for (int i = 0; i < 300; ++i) {
      nlohmann::json list = nlohmann::json::array();
      for (uint64_t n = random.Below(4); n > 0; --n)
        list.push_back({{"role", "user"}, {"content", std::string(random.Below(30), 'a' + n)}});
      nlohmann::json row = {{"prompt", list},
                            {"n", static_cast<int64_t>(random.Next() >> 1)},
                            {"x", random.Uniform()},
                            {"yes", random.Below(2) == 0},
                            {"deep", {{"a", {{"b", {1, 2, static_cast<int>(random.Below(9))}}}}}}};
      for (const char* name : {"n", "x", "deep"})
        if (random.Below(5) == 0) row[name] = nullptr;
      rows.push_back(std::move(row));
    }
    std::ofstream lines(Path("rows.jsonl"));
    for (const auto& row : rows) lines << row.dump() << "\n";
    lines.close();
    Python(
        "rows = [json.loads(line) for line in open('rows.jsonl')]\n"
        "table = pa.Table.from_pylist(rows)\n"
        "pq.write_table(table, 'rows.parquet', row_group_size=70)\n"
        "with pa.ipc.new_stream('rows_stream.arrow', table.schema) as out:\n"
        "  out.write_table(table, max_chunksize=90)\n"
        "with pa.ipc.new_file('rows_file.arrow', table.schema) as out: out.write_table(table)\n");
    const std::map<std::string, std::string> fields = {{"prompt", "prompt"}, {"n", "n"},
                                                       {"x", "x"},           {"yes", "yes"},
                                                       {"b", "deep.a.b"},    {"deep", "deep"}};
    // A column in an object that is null does not exist.
    const auto expected = Read(Path("rows.jsonl"), fields, /*skip=*/true);
    for (const char* name : {"rows.parquet", "rows_stream.arrow", "rows_file.arrow"}) {
      SCOPED_TRACE(name);
      const auto read = Read(Path(name), fields, /*skip=*/true);
      ExpectSameRows(read, expected);
      EXPECT_EQ(read->skipped(), expected->skipped());
    }
  }
}

TEST_F(ColumnarTest, EachTypeHasItsFormInJson) {
  Python(
      "types = dict(\n"
      "  prompt=pa.array(['p']), i8=pa.array([-3], pa.int8()), u64=pa.array([2**64 - 1], "
      "pa.uint64()),\n"
      "  half=pa.array([0.5], pa.float32()).cast(pa.float16()), f=pa.array([0.25], pa.float32()),\n"
      "  large=pa.array(['l'], pa.large_string()), words=pa.array(['w']).dictionary_encode(),\n"
      "  day=pa.array([datetime.date(2026, 1, 2)]), money=pa.array([decimal.Decimal('1.50')]),\n"
      "  map=pa.array([[('a', 1)]], pa.map_(pa.string(), pa.int32())),\n"
      "  fixed=pa.array([[1, 2]], pa.list_(pa.int32(), 2)), nothing=pa.array([None]))\n"
      "pq.write_table(pa.table(types), 'types.parquet')\n");
  std::map<std::string, std::string> fields;
  for (const char* name : {"prompt", "i8", "u64", "half", "f", "large", "words", "day", "money",
                           "map", "fixed", "nothing"})
    fields[name] = name;
  const auto read = Read(Path("types.parquet"), fields);
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(nlohmann::json::parse(read->json(0)),
            nlohmann::json::parse(R"({"prompt": "p", "i8": -3, "u64": 18446744073709551615,
                "half": 0.5, "f": 0.25, "large": "l", "words": "w", "day": "2026-01-02",
                "money": "1.50", "map": {"a": 1}, "fixed": [1, 2], "nothing": null})"));
}

TEST_F(ColumnarTest, WhatJsonHasNoFormForIsRefusedByColumn) {
  Python(
      "pq.write_table(pa.table(dict(prompt=['p'], image=[b'\\xff'])), 'bytes.parquet')\n"
      "pq.write_table(pa.table(dict(prompt=['p'], x=[float('nan')])), 'nan.parquet')\n"
      "t = pa.list_(pa.int32())\n"
      "for i in range(70): t = pa.list_(t)\n"
      "pq.write_table(pa.table(dict(prompt=['p'], deep=pa.array([None], t))), 'deep.parquet')\n");
  const auto message = [&](const char* file, const char* column) {
    const auto read = Read(Path(file), {{"prompt", "prompt"}, {column, column}});
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << file;
    return std::string(read.status().message());
  };
  EXPECT_THAT(message("bytes.parquet", "image"),
              testing::AllOf(HasSubstr("bytes.parquet"), HasSubstr("column \"image\""),
                             HasSubstr("binary")));
  EXPECT_THAT(message("nan.parquet", "x"), HasSubstr("column \"x\": a number is not finite"));
  EXPECT_THAT(message("deep.parquet", "deep"), HasSubstr("too deeply nested"));
  // A column that no field names is not read.
  EXPECT_TRUE(Read(Path("bytes.parquet"), {{"prompt", "prompt"}}).ok());
}

TEST_F(ColumnarTest, ARowThatNestsMoreDeeplyThanALineMayIsABadRow) {
  Python(
      "t, v = pa.int32(), 1\n"
      "for i in range(70): t, v = pa.struct([('x', t)]), dict(x=v)\n"
      "pq.write_table(pa.table(dict(prompt=['p', 'q'], deep=pa.array([None, v], t))), "
      "'deep.parquet')\n");
  const auto read = Read(Path("deep.parquet"), {{"prompt", "prompt"}, {"deep", "deep"}});
  EXPECT_EQ(ReasonOf(read.status()), "BAD_ROW");
  EXPECT_THAT(
      std::string(read.status().message()),
      HasSubstr("deep.parquet: row 2: lists and objects are nested 71 deep; the limit is "));
}

// Writes the end of a Parquet file by hand, because pyarrow itself would overflow its stack.
TEST_F(ColumnarTest, ASchemaThatNestsAHundredThousandDeepIsRefused) {
  Python(
      "import struct\n"
      "def num(n): return bytes([n & 127 | 128]) + num(n >> 7) if n > 127 else bytes([n])\n"
      "def i32(step, n): return bytes([step << 4 | 5]) + num(2 * n)\n"
      "def text(step, t): return bytes([step << 4 | 8]) + num(len(t)) + t\n"
      "def structs(s): return bytes([0x19, 0xFC]) + num(len(s)) + b''.join(s)\n"
      "root = text(4, b'schema') + i32(1, 1) + b'\\0'\n"
      "group = i32(3, 1) + text(1, b'prompt') + i32(1, 1) + b'\\0'\n"
      "leaf = i32(1, 6) + i32(2, 1) + text(1, b'x') + b'\\0'\n"
      "end = i32(1, 1) + structs([root] + [group] * 100000 + [leaf]) + b'\\x16\\0' + structs([]) "
      "+ b'\\0'\n"
      "with open('deep.parquet', 'wb') as f:\n"
      "  f.write(b'PAR1' + end + struct.pack('<I', len(end)) + b'PAR1')\n");
  const auto read = Read(Path("deep.parquet"), {{"prompt", "prompt"}});
  EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("schema too deeply nested"));
}

TEST_F(ColumnarTest, ABadRowIsNamedByItsNumberAndAMissingColumnWithThoseThatAreThere) {
  Python(
      "rows = [dict(prompt='p', gold=dict(a='1')), dict(prompt='q', gold=None)]\n"
      "pq.write_table(pa.Table.from_pylist(rows), 'rows.parquet')\n");
  const auto bad = Read(Path("rows.parquet"), {{"prompt", "prompt"}, {"answer", "gold.a"}});
  EXPECT_EQ(ReasonOf(bad.status()), "BAD_ROW");
  EXPECT_THAT(std::string(bad.status().message()), HasSubstr("rows.parquet: row 2: "));
  const auto missing = Read(Path("rows.parquet"), {{"prompt", "question"}});
  EXPECT_THAT(std::string(missing.status().message()),
              testing::AllOf(HasSubstr("no column \"question\""), HasSubstr("prompt, gold")));
  const auto first = Read(Path("rows.parquet"), {{"prompt", "prompt"}}, false, /*first_rows=*/1);
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(first->rows(), 1u);
  EXPECT_EQ(first->line(0), 1u);
}

TEST_F(ColumnarTest, AFolderOfDatasetsHasTheRowsOfItsFilesInTheirOrder) {
  Python(
      "import os\n"
      "os.makedirs('set'); os.makedirs('dict/train')\n"
      "for n in range(2):\n"
      "  table = pa.table(dict(q=[f'{n}a', f'{n}b'], a=[n, n]))\n"
      "  with pa.ipc.new_stream(f'set/data-0000{n}-of-00002.arrow', table.schema) as out:\n"
      "    out.write_table(table)\n"
      "files = [dict(filename=f'data-0000{n}-of-00002.arrow') for n in range(2)]\n"
      "json.dump(dict(_data_files=files, _split=None), open('set/state.json', 'w'))\n"
      "json.dump(dict(splits=['train']), open('dict/dataset_dict.json', 'w'))\n"
      "os.makedirs('out'); files[0]['filename'] = '../set/data-00000-of-00002.arrow'\n"
      "json.dump(dict(_data_files=files), open('out/state.json', 'w'))\n"
      "os.makedirs('number')\n"
      "json.dump(dict(_data_files=[dict(filename=1)]), open('number/state.json', 'w'))\n"
      "os.makedirs('link'); os.symlink('../set/data-00000-of-00002.arrow', 'link/a.arrow')\n"
      "json.dump(dict(_data_files=[dict(filename='a.arrow')]), open('link/state.json', 'w'))\n");
  const std::map<std::string, std::string> fields = {{"prompt", "q"}, {"answer", "a"}};
  const auto read = Read(Path("set"), fields);
  ASSERT_TRUE(read.ok()) << read.status();
  ASSERT_EQ(read->rows(), 4u);
  EXPECT_EQ(read->json(2), R"({"answer":1,"prompt":"1a"})");

  const auto splits = Read(Path("dict"), fields);
  EXPECT_EQ(ReasonOf(splits.status()), "UNSUPPORTED");
  EXPECT_THAT(std::string(splits.status().message()), HasSubstr("several splits: train"));
  EXPECT_THAT(DetailOf(splits.status()).hint, HasSubstr(Path("dict/train")));
  EXPECT_EQ(ReasonOf(Read(dir_, fields).status()), "UNSUPPORTED");
  for (const char* wrong : {"out", "link", "number"})
    EXPECT_EQ(ReasonOf(Read(Path(wrong), fields).status()), "UNSUPPORTED") << wrong;
}

// A file of a few kilobytes may stand for rows of gigabytes.
TEST_F(ColumnarTest, AValueThatIsTooLargeIsRefused) {
  Python(
      "big = pa.array([['x' * 1000000] * 100])\n"
      "pq.write_table(pa.table(dict(prompt=['p'], big=big)), 'big.parquet')\n");
  EXPECT_LT(fs::file_size(Path("big.parquet")), 1000000u);
  const auto read = Read(Path("big.parquet"), {{"prompt", "prompt"}, {"big", "big"}});
  EXPECT_THAT(std::string(read.status().message()), HasSubstr("more than 67108864 bytes"));
}

// Whatever byte is wrong, the file is refused or has rows, and nothing else happens.
TEST_F(ColumnarTest, DamagedFilesAreRefusedOrReadButEndNothing) {
  Python(
      "rows = [dict(prompt=f'p{i % 7}', gold=dict(a=str(i))) for i in range(50)]\n"
      "table = pa.Table.from_pylist(rows)\n"
      "words = table.column('prompt').dictionary_encode()\n"
      "table = table.set_column(0, 'prompt', words)\n"
      "pq.write_table(table, 'rows.parquet')\n"
      "with pa.ipc.new_stream('rows.arrow', table.schema) as out: out.write_table(table)\n");
  int refused = 0;
  for (const char* name : {"rows.parquet", "rows.arrow"}) {
    const std::string whole = *ReadFile(Path(name));
    for (uint64_t seed = 1; seed <= 150; ++seed) {
      SplitMix64 random(seed);
      std::string bytes = whole;
      if (seed % 3 == 0) bytes.resize(random.Below(bytes.size()));
      else bytes[random.Below(bytes.size())] ^= static_cast<char>(1 + random.Below(255));
      const std::string damaged = Path(absl::StrCat("damaged_", name));
      ASSERT_TRUE(WriteFileAtomic(damaged, bytes).ok());
      refused += !Read(damaged, {{"prompt", "prompt"}, {"answer", "gold.a"}}, true).ok();
    }
  }
  EXPECT_GT(refused, 100);
}

}  // namespace
}  // namespace sluice
