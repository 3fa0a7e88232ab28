#include <cmath>

#include "kernels/sample/op.h"
#include "tests/kernels/cuda/check.h"

namespace sluice {
namespace {

using cuda_check::Measure;
using cuda_check::OnDevice;
using cuda_check::RandomFloats;
using cuda_check::Small;

// Returns row r of the check. The rows combine temperature 0, banned tokens and the cuts in many
// ways.
SampleRow MakeRow(int64_t r) {
  return {.key = 77u + static_cast<uint64_t>(r),
          .position = static_cast<uint32_t>(r),
          .member = 2,
          .temperature = r % 7 == 0 ? 0.0f : 0.5f + 0.1f * static_cast<float>(r),
          .banned_count = r % 3 == 0 ? 2 : 0,
          .top_k = r % 5 == 1 ? 20 : 0,
          .top_p = r % 4 == 1 ? 0.9 : 1.0,
          .min_p = r % 6 == 2 ? 0.05f : 0.0f};
}

// Draws with a workspace of its own.
void Draw(OnDevice<SampleRow>* rows, int64_t row_count, int64_t vocab,
          OnDevice<SampleDraw>* draws) {
  OnDevice<char> workspace(static_cast<size_t>(SampleCudaWorkspace(row_count, vocab)));
  CUDA_OK(SampleCuda(rows->data(), row_count, vocab, draws->data(), workspace.data(), nullptr));
  CUDA_OK(cudaDeviceSynchronize());
}

void CheckDraws(int64_t vocab, int64_t row_count) {
  std::vector<float> logits = RandomFloats(static_cast<uint32_t>(vocab), vocab * row_count, 3);
  if (row_count > 5) logits[vocab * 5] = NAN;
  const std::vector<int32_t> banned = {0, 2};
  std::vector<int32_t> kept(vocab * row_count, -1);
  OnDevice<float> device_logits(logits);
  OnDevice<int32_t> device_banned(banned), device_kept(kept);

  std::vector<SampleRow> rows, device_rows;
  for (int64_t r = 0; r < row_count; ++r) {
    const bool keeps = r % 7 != 0 && r % 2 == 1;
    SampleRow row = MakeRow(r);
    row.logits = logits.data() + r * vocab;
    row.banned = banned.data();
    row.kept = keeps ? kept.data() + r * vocab : nullptr;
    rows.push_back(row);
    row.logits = device_logits.data() + r * vocab;
    row.banned = device_banned.data();
    row.kept = keeps ? device_kept.data() + r * vocab : nullptr;
    device_rows.push_back(row);
  }

  std::vector<SampleDraw> expected(row_count);
  SampleCpu(rows.data(), row_count, vocab, expected.data());
  OnDevice<SampleRow> on_device(device_rows);
  OnDevice<SampleDraw> draws(static_cast<size_t>(row_count));
  Draw(&on_device, row_count, vocab, &draws);

  const std::vector<SampleDraw> drawn = draws.CopyToHost();
  for (int64_t r = 0; r < row_count; ++r) {
    CUDA_EXPECT(drawn[r] == expected[r])
        << "V " << vocab << " row " << r << ": token " << drawn[r].token << " of "
        << drawn[r].logprob << ", " << drawn[r].kept << " kept; the CPU's " << expected[r].token
        << " of " << expected[r].logprob << ", " << expected[r].kept << " kept";
  }
  CUDA_EXPECT(cuda_check::SameBits(device_kept.CopyToHost(), kept)) << "V " << vocab;
}

CUDA_CASE(DrawsEqualTheReferenceInBits) {
  for (const int64_t vocab : {1, 3, 64, 1025}) CheckDraws(vocab, 40);
  if (Small()) return;
  for (const int64_t vocab : {1023, 70'000, 151'936}) CheckDraws(vocab, 40);
}

// A block adds the sums of 1024 chunks of 1024 tokens at once.
CUDA_CASE(DrawsEqualTheReferenceIfThereAreManyChunks) {
  CheckDraws(Small() ? 66'000 : 1'100'000, 3);
}

CUDA_CASE(ManyEqualLogitsAreCutByTheirIds) {
  constexpr int64_t kVocab = 1500;
  std::vector<float> logits(kVocab);
  for (int64_t v = 0; v < kVocab; ++v) logits[v] = static_cast<float>(v % 3);
  OnDevice<float> device_logits(logits);
  std::vector<SampleRow> rows, device_rows;
  for (const int32_t top_k : {1, 499, 500, 501, 1100}) {
    SampleRow row{.logits = logits.data(), .key = 5, .top_k = top_k, .top_p = 0.99};
    rows.push_back(row);
    row.logits = device_logits.data();
    device_rows.push_back(row);
  }

  std::vector<SampleDraw> expected(rows.size());
  SampleCpu(rows.data(), static_cast<int64_t>(rows.size()), kVocab, expected.data());
  OnDevice<SampleRow> on_device(device_rows);
  OnDevice<SampleDraw> draws(rows.size());
  Draw(&on_device, static_cast<int64_t>(rows.size()), kVocab, &draws);
  const std::vector<SampleDraw> drawn = draws.CopyToHost();
  for (size_t r = 0; r < rows.size(); ++r) {
    CUDA_EXPECT(drawn[r] == expected[r])
        << "row " << r << ": token " << drawn[r].token << " of " << drawn[r].logprob
        << "; the CPU's " << expected[r].token << " of " << expected[r].logprob;
  }
}

// Measures draws from 64 rows of a large vocabulary. The bytes to read are those of each logit
// once.
void MeasureDraws(const std::string& name, const SampleRow& like) {
  const int64_t rows = Small() ? 2 : 64, vocab = Small() ? 300 : 151'936;
  OnDevice<float> logits(cuda_check::ManyFloats(rows * vocab));
  std::vector<SampleRow> all;
  for (int64_t r = 0; r < rows; ++r) {
    all.push_back(like);
    all.back().logits = logits.data() + r * vocab;
    all.back().position = static_cast<uint32_t>(r);
  }
  OnDevice<SampleRow> on_device(all);
  OnDevice<SampleDraw> draws(all.size());
  OnDevice<char> workspace(static_cast<size_t>(SampleCudaWorkspace(rows, vocab)));
  Measure(name, 4.0 * static_cast<double>(rows * vocab), 0, [&] {
    CUDA_OK(SampleCuda(on_device.data(), rows, vocab, draws.data(), workspace.data(), nullptr));
  });
}

CUDA_BENCH(Speed) {
  MeasureDraws("sample greedy", {.temperature = 0});
  MeasureDraws("sample", {});
  MeasureDraws("sample top-p", {.top_p = 0.9});
}

}  // namespace
}  // namespace sluice
