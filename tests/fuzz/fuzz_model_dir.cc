// Fuzzes a model directory with any bytes in its files.
//
// Input: files, each u8 name (an index into kNames), u16 size little-endian, bytes. If a name
// occurs again, the later file replaces the earlier one.
//
// The directory is read as an engine reads it. If it is accepted, it has the tensors of its
// config, all numbers are finite, and a copy written to another directory reads back the same.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <filesystem>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/status.h"
#include "common/checkpoint/init.h"
#include "common/checkpoint/model_dir.h"
#include "common/checkpoint/safetensors.h"
#include "tests/fuzz/target.h"

namespace sluice::fuzz {
namespace {

constexpr const char* kNames[] = {"config.json",           "generation_config.json",
                                  "tokenizer_config.json", "chat_template.jinja",
                                  "model.safetensors",     "model.safetensors.index.json",
                                  "a.safetensors",         "b.safetensors"};
// A config may ask for any size. Larger ones are skipped, because this target does not test memory.
constexpr int64_t kMostParameters = 1 << 16;

const std::string& Root() {
  static const std::string root = [] {
    const std::string base =
        PathExists("/dev/shm") ? "/dev/shm" : std::filesystem::temp_directory_path().string();
    return absl::StrCat(base, "/fuzz_model_dir-", getpid());
  }();
  return root;
}

// A folder in Root(). At its end all of Root() is removed.
struct Folder {
  explicit Folder(const std::string& name) : path(absl::StrCat(Root(), "/", name)) {
    SLUICE_CHECK(MakeDirs(path).ok());
  }
  ~Folder() { (void)RemoveTree(Root()); }
  const std::string path;
};

void CheckFile(const SafetensorsFile& file) {
  int64_t end = -1;
  for (const SafetensorsFile::Entry& entry : file.entries()) {
    if (end >= 0) SLUICE_CHECK(entry.offset == end);
    end = entry.offset + entry.bytes;
    std::vector<std::byte> bytes(entry.bytes);
    SLUICE_CHECK(file.Read(entry, absl::MakeSpan(bytes)).ok());
  }
}

}  // namespace

void Run(absl::string_view input) {
  const Folder folder("model");
  while (input.size() >= 3) {
    const char* const name = kNames[static_cast<uint8_t>(input[0]) % std::size(kNames)];
    const size_t size = std::min<size_t>(
        static_cast<uint8_t>(input[1]) | static_cast<uint8_t>(input[2]) << 8, input.size() - 3);
    SLUICE_CHECK(WriteFileAtomic(absl::StrCat(folder.path, "/", name), input.substr(3, size)).ok());
    input.remove_prefix(3 + size);
  }

  for (const char* const name : {"model.safetensors", "a.safetensors"}) {
    if (const auto file = SafetensorsFile::Open(absl::StrCat(folder.path, "/", name)); file.ok())
      CheckFile(*file);
  }

  const auto dir = ReadModelDir(folder.path);
  if (!dir.ok() || dir->config.NumParameters() > kMostParameters) return;
  const auto weights = ReadWeights(*dir, DType::kF32);
  if (!weights.ok()) return;
  for (size_t i = 0; i < weights->size(); ++i) {
    for (const float x : weights->as<float>(i)) SLUICE_CHECK(std::isfinite(x));
  }

  const std::string copy = absl::StrCat(Root(), "/copy");
  SLUICE_CHECK(WriteModelDir(copy, *dir, *weights).ok());
  const auto read = ReadModelDir(copy);
  SLUICE_CHECK_MSG(read.ok(), read.status().ToString());
  SLUICE_CHECK(ReadWeights(*read, DType::kF32)->buffer() == weights->buffer());
}

std::vector<std::string> Seeds() {
  const std::string config =
      R"({"architectures": ["Qwen3ForCausalLM"], "vocab_size": 16, "hidden_size": 8, )"
      R"("intermediate_size": 12, "num_hidden_layers": 1,
      "num_attention_heads": 2, "num_key_value_heads": 1, "head_dim": 4, )"
      R"("max_position_embeddings": 32, "tie_word_embeddings": true, "eos_token_id": 2,
      "rope_scaling": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, )"
      R"("high_freq_factor": 4.0, "original_max_position_embeddings": 16},
      "torch_dtype": "float32"})";
  const auto file = [](int name, absl::string_view bytes) {
    std::string out = {static_cast<char>(name), static_cast<char>(bytes.size()),
                       static_cast<char>(bytes.size() >> 8)};
    return absl::StrCat(out, bytes);
  };
  const auto parsed = ParseModelConfig(config, "seed");
  SLUICE_CHECK_MSG(parsed.ok(), parsed.status().ToString());
  const Folder folder("seed");
  const std::string path = absl::StrCat(folder.path, "/model.safetensors");
  SLUICE_CHECK(WriteSafetensors(path, *InitWeights(*parsed, 1)).ok());
  const std::string weights = *ReadFile(path);
  SLUICE_CHECK(weights.size() < 1 << 16);
  std::string index = R"({"metadata": {}, "weight_map": {)";
  for (const TensorSpec& spec : parsed->Parameters(DType::kF32))
    absl::StrAppend(&index, index.back() == '{' ? "" : ", ", "\"", spec.name,
                    "\": \"a.safetensors\"");
  index += "}}";
  return {file(0, config) + file(4, weights), file(0, config) + file(5, index) + file(6, weights),
          file(0, config) + file(1, R"({"eos_token_id": [2, 3]})") +
              file(2, R"({"chat_template": "{{ messages }}"})") + file(4, weights)};
}

}  // namespace sluice::fuzz
