#include "common/weights/delta_chunk.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "kernels/weight_delta/bits.h"

namespace sluice {
namespace {

using kernels::DeltaChanges;
using kernels::DeltaMode;
using kernels::DeltaShard;
using kernels::DeltaTile;

constexpr uint8_t kCodec = 1;
constexpr int64_t kTilesPerJob = 64;     // Of 8192 elements: a few hundred microseconds of work.
constexpr uint64_t kTilesAtOnce = 1024;  // Enough jobs for the threads.

bool IsTileLog2(int tile_log2) {
  return tile_log2 == kernels::kDeltaTileLog2 || tile_log2 == kernels::kLongDeltaTileLog2;
}
uint64_t TilesOf(uint64_t elements, int tile_log2) {
  return (elements >> tile_log2) + (elements % (uint64_t{1} << tile_log2) != 0);
}

template <typename T>
absl::string_view BytesOf(const std::vector<T>& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)};
}

// Fills `values` from the bytes at `offset`.
template <typename T>
void ReadFrom(absl::string_view bytes, uint64_t offset, std::vector<T>* values) {
  if (!values->empty()) std::memcpy(values->data(), bytes.data() + offset, BytesOf(*values).size());
}

// Tiles that one thread encodes, and the result.
struct EncodeJob {
  size_t input;
  uint64_t tile_begin, tile_end;
  std::vector<DeltaTile> tiles;
  std::vector<uint8_t> bodies;
  Fingerprint sum;
};

}  // namespace

// ---- Writing.

DeltaChunkWriter::DeltaChunkWriter(const DeltaChunkOptions& options,
                                   std::function<void(std::string chunk)> emit)
    : options_(options), emit_(std::move(emit)) {
  SLUICE_CHECK(IsTileLog2(options_.tile_log2) && options_.target_bytes <= kMaxChunkBytes);
}

void DeltaChunkWriter::Add(uint32_t tensor, const DeltaShard& shard,
                           absl::Span<const DeltaTile> tiles, absl::Span<const uint8_t> bodies,
                           uint32_t before) {
  SLUICE_CHECK(tiles.size() == TilesOf(shard.count, options_.tile_log2));
  const auto is_same = [](const DeltaTile& tile) { return tile.mode == DeltaMode::kSame; };
  if (std::all_of(tiles.begin(), tiles.end(), is_same)) return;

  uint64_t at = 0;
  bool in_run = false;
  for (size_t t = 0; t < tiles.size(); ++t) {
    const uint32_t size = tiles[t].end - before;
    before = tiles[t].end;
    const uint64_t run_bytes = in_run ? 0 : sizeof(ChunkRun);
    if (!tiles_.empty() &&
        (bytes() + run_bytes + sizeof(DeltaTile) + size > options_.target_bytes ||
         (!in_run && runs_.size() == UINT16_MAX))) {
      Close();
      in_run = false;
    }

    const uint64_t start = uint64_t{t} << options_.tile_log2;
    if (!in_run) {
      // In a range of a tensor, the run simply begins later.
      const bool range = shard.row_len == shard.row_stride;
      runs_.push_back({.tensor = tensor,
                       .first = shard.first + (range ? start : 0),
                       .row_len = range ? 1 : shard.row_len,
                       .row_stride = range ? 1 : shard.row_stride,
                       .start = range ? 0 : start});
      in_run = true;
    }
    runs_.back().count += std::min(shard.count - start, uint64_t{1} << options_.tile_log2);
    runs_.back().tiles += 1;
    const absl::Span<const uint8_t> body = bodies.subspan(at, size);
    SLUICE_CHECK(body.size() == size);
    body_.append(reinterpret_cast<const char*>(body.data()), size);
    tiles_.push_back(tiles[t]);
    tiles_.back().end = static_cast<uint32_t>(body_.size());
    at += size;
  }
}

void DeltaChunkWriter::Finish() {
  if (!tiles_.empty()) Close();
}

uint64_t DeltaChunkWriter::bytes() const {
  return sizeof(ChunkHeader) + BytesOf(runs_).size() + BytesOf(tiles_).size() + body_.size();
}

void DeltaChunkWriter::Close() {
  const ChunkHeader header = {.codec = kCodec,
                              .tile_log2 = static_cast<uint8_t>(options_.tile_log2),
                              .runs = static_cast<uint16_t>(runs_.size()),
                              .tiles = static_cast<uint32_t>(tiles_.size()),
                              .body = static_cast<uint32_t>(body_.size())};
  emit_(absl::StrCat(absl::string_view(reinterpret_cast<const char*>(&header), sizeof header),
                     BytesOf(runs_), BytesOf(tiles_), body_));
  runs_.clear();
  tiles_.clear();
  body_.clear();
}

uint64_t CountChanged(absl::string_view chunk) {
  ChunkHeader header;
  std::memcpy(&header, chunk.data(), sizeof header);
  std::vector<DeltaTile> tiles(header.tiles);
  ReadFrom(chunk, sizeof header + header.runs * sizeof(ChunkRun), &tiles);
  uint64_t changed = 0;
  for (const DeltaTile& tile : tiles) {
    if (tile.mode != DeltaMode::kSame) changed += uint64_t{tile.changed_less_one} + 1;
  }
  return changed;
}

void EncodeDeltaChunks(absl::Span<const DeltaInput> inputs, const DeltaChunkOptions& options,
                       ForEachIndex for_each, const std::function<void(std::string chunk)>& emit,
                       absl::Span<Fingerprint> sums) {
  DeltaChunkWriter writer(options, emit);
  const auto tiles_of = [&](size_t i) {
    return TilesOf(inputs[i].source.shard.count, options.tile_log2);
  };
  for (size_t first = 0, last = 0; first < inputs.size(); first = last) {
    // Not all inputs at once, because the bodies take memory until they are joined.
    std::vector<EncodeJob> jobs;
    for (uint64_t taken = 0; last < inputs.size() && (taken == 0 || taken < kTilesAtOnce); ++last) {
      const uint64_t tiles = tiles_of(last);
      for (uint64_t begin = 0; begin < tiles; begin += kTilesPerJob)
        jobs.push_back({last, begin, std::min(tiles, begin + kTilesPerJob), {}, {}, {}});
      taken += tiles;
    }
    for_each(static_cast<int64_t>(jobs.size()), [&](int64_t j) {
      EncodeJob& job = jobs[static_cast<size_t>(j)];
      const DeltaInput& input = inputs[job.input];
      kernels::EncodeDelta(input.source, input.width, options.tile_log2, job.tile_begin,
                           job.tile_end, &job.tiles, &job.bodies, job.sum.f);
    });

    // Join the jobs of each input.
    for (auto job = jobs.begin(); job != jobs.end();) {
      const size_t input = job->input;
      std::vector<DeltaTile> tiles;
      std::vector<uint8_t> bodies;
      for (; job != jobs.end() && job->input == input; ++job) {
        for (DeltaTile tile : job->tiles) {
          tile.end += static_cast<uint32_t>(bodies.size());
          tiles.push_back(tile);
        }
        bodies.insert(bodies.end(), job->bodies.begin(), job->bodies.end());
        job->bodies = std::vector<uint8_t>();
        sums[input] += job->sum;
      }
      writer.Add(inputs[input].tensor, inputs[input].source.shard, tiles, bodies);
    }
  }
  writer.Finish();
}

// ---- Reading.

std::vector<DeltaTarget> WholeTensors(TensorSet* weights) {
  std::vector<DeltaTarget> targets;
  for (size_t i = 0; i < weights->size(); ++i) {
    targets.push_back({.tensor = static_cast<uint32_t>(i),
                       .shard = {.count = static_cast<uint64_t>(weights->elements(i))},
                       .weights = weights->data(i)});
  }
  return targets;
}

absl::Span<const uint8_t> DeltaChunk::body() const {
  return absl::MakeConstSpan(reinterpret_cast<const uint8_t*>(bytes_.data()), bytes_.size())
      .subspan(body_begin_);
}

absl::StatusOr<DeltaChunk> DeltaChunk::Parse(std::string bytes,
                                             absl::Span<const TensorSpec> layout) {
  DeltaChunk chunk;
  chunk.bytes_ = std::move(bytes);
  ChunkHeader header;
  std::string wrong = chunk.ReadHeader(&header);

  if (wrong.empty()) {
    std::vector<ChunkRun> runs(header.runs);
    ReadFrom(chunk.bytes_, sizeof header, &runs);
    for (size_t r = 0; r < runs.size() && wrong.empty(); ++r)
      wrong = chunk.ReadRun(runs[r], layout);
  }
  if (wrong.empty()) wrong = chunk.CheckTiles(layout);
  if (!wrong.empty())
    return absl::DataLossError(absl::StrCat(ChunkName(chunk.bytes_), ": ", wrong));

  for (const DeltaTile& tile : chunk.tiles_)
    chunk.changed_ += tile.mode == DeltaMode::kSame ? 0 : tile.changed_less_one + 1u;
  return chunk;
}

// Reads the header and the directory.
std::string DeltaChunk::ReadHeader(ChunkHeader* to) {
  ChunkHeader& header = *to;
  if (bytes_.size() < sizeof header || bytes_.size() > kMaxChunkBytes)
    return absl::StrCat("its size of ", bytes_.size(), " bytes is not within ", sizeof header,
                        " and ", kMaxChunkBytes);
  std::memcpy(&header, bytes_.data(), sizeof header);
  if (!header.HasMagic()) return "it does not begin with SLW1";
  if (header.codec != kCodec)
    return absl::StrCat("it has codec ", header.codec, ", but the codec of a delta is 1");
  if (!IsTileLog2(header.tile_log2))
    return absl::StrCat("it has tiles of 2^", header.tile_log2, " elements, not 2^13 or 2^16");

  const uint64_t directory = sizeof header + uint64_t{header.runs} * sizeof(ChunkRun);
  body_begin_ = directory + uint64_t{header.tiles} * sizeof(DeltaTile);
  if (bytes_.size() != body_begin_ + header.body)
    return absl::StrCat("it has ", bytes_.size(), " bytes, but its header, ", header.runs,
                        " runs, ", header.tiles, " tiles and a body of ", header.body,
                        " bytes need ", body_begin_ + header.body);

  tile_log2_ = header.tile_log2;
  tiles_.resize(header.tiles);
  ReadFrom(bytes_, directory, &tiles_);
  return "";
}

std::string DeltaChunk::ReadRun(const ChunkRun& run, absl::Span<const TensorSpec> layout) {
  if (run.tensor >= layout.size())
    return absl::StrCat("a run names tensor ", run.tensor, ", but there are ", layout.size());
  const TensorSpec& spec = layout[run.tensor];
  const size_t width = DTypeBytes(spec.dtype);
  const absl::StatusOr<int64_t> elements = NumElements(spec.shape);
  if (!elements.ok() || width > 4)
    return absl::StrCat(spec.name, ": there are no deltas of ", ShapeText(spec.dtype, spec.shape));

  const auto all = static_cast<uint64_t>(*elements);
  if (run.count == 0 || run.row_len == 0 || run.row_stride < run.row_len || run.row_stride > all)
    return absl::StrCat(spec.name, ": a run of ", run.count, " elements in rows of ", run.row_len,
                        ", one every ", run.row_stride, ", of ", all, " elements");
  // The last element decides whether all are inside. Below, 2^65 rows of 2^62 do not overflow.
  using Wide = unsigned __int128;
  const Wide last = Wide{run.start} + run.count - 1;
  const Wide index = run.first + last / run.row_len * run.row_stride + last % run.row_len;
  if (index >= all)
    return absl::StrCat(spec.name, ": a run of ", run.count, " elements from ", run.start,
                        " on, in rows of ", run.row_len, ", one every ", run.row_stride, " from ",
                        run.first, " on, does not fit in ", all);
  if (run.tiles != TilesOf(run.count, tile_log2_))
    return absl::StrCat(spec.name, ": a run of ", run.count, " elements has ",
                        TilesOf(run.count, tile_log2_), " tiles, not ", run.tiles);

  const uint32_t first_tile = runs_.empty() ? 0 : runs_.back().first_tile + runs_.back().tiles;
  if (run.tiles > tiles_.size() - first_tile)
    return absl::StrCat(spec.name, ": the runs have more tiles than the ", tiles_.size(),
                        " of the directory");
  runs_.push_back({.tensor = run.tensor,
                   .width = static_cast<int>(width),
                   .shard = {.tid = TensorKey(spec.name),
                             .first = run.first,
                             .row_len = run.row_len,
                             .row_stride = run.row_stride,
                             .count = run.start + run.count},
                   .start = run.start,
                   .first_tile = first_tile,
                   .tiles = run.tiles});
  return "";
}

std::string DeltaChunk::CheckTiles(absl::Span<const TensorSpec> layout) const {
  const uint32_t tiles = runs_.empty() ? 0 : runs_.back().first_tile + runs_.back().tiles;
  if (tiles != tiles_.size())
    return absl::StrCat("the runs have ", tiles, " tiles, but the directory has ", tiles_.size());
  if ((tiles_.empty() ? 0 : tiles_.back().end) != body().size())
    return absl::StrCat("its tiles do not end with its body of ", body().size(), " bytes");

  DeltaChanges changes;
  for (const Run& run : runs_) {
    for (uint32_t t = 0; t < run.tiles; ++t) {
      if (const char* const wrong = Decode(run, t, &changes))
        return absl::StrCat(layout[run.tensor].name, ", tile ", t, ": ", wrong);
    }
  }
  return "";
}

const char* DeltaChunk::Decode(const Run& run, uint32_t tile, DeltaChanges* changes) const {
  const uint32_t number = run.first_tile + tile;
  const uint32_t begin = number == 0 ? 0 : tiles_[number - 1].end;
  const DeltaTile& entry = tiles_[number];
  if (entry.end < begin || entry.end > body().size())
    return "its body is not within that of the chunk";
  const uint64_t start = run.start + (uint64_t{tile} << tile_log2_);
  const auto n =
      static_cast<uint32_t>(std::min(run.shard.count - start, uint64_t{1} << tile_log2_));
  return kernels::DecodeDeltaTile(run.width, tile_log2_, n, entry,
                                  {body().data() + begin, entry.end - begin}, changes);
}

void DeltaChunk::ForEachTile(const Run& run, TileVisitor visit) const {
  DeltaChanges changes;
  ForEachTile(run, 0, run.tiles, &changes, visit);
}

void DeltaChunk::ForEachTile(const Run& run, uint32_t begin, uint32_t end, DeltaChanges* changes,
                             TileVisitor visit) const {
  for (uint32_t t = begin; t < end; ++t) {
    if (tiles_[run.first_tile + t].mode == DeltaMode::kSame) continue;
    SLUICE_CHECK(Decode(run, t, changes) == nullptr);  // Parse() has decoded it.
    visit(run.start + (uint64_t{t} << tile_log2_), *changes);
  }
}

void DeltaChunk::Apply(int sign, absl::Span<const DeltaTarget> targets,
                       absl::Span<Fingerprint> sums) const {
  const auto before = [](const DeltaTarget& target, uint32_t t) { return target.tensor < t; };
  for (const Run& run : runs_) {
    const auto first = std::lower_bound(targets.begin(), targets.end(), run.tensor, before);
    const auto last = std::lower_bound(first, targets.end(), run.tensor + 1, before);
    if (first == last) continue;
    ForEachTile(run, [&](uint64_t start, const DeltaChanges& changes) {
      for (auto target = first; target != last; ++target) {
        kernels::ApplyDelta(run.shard, start, changes, sign, target->shard, run.width,
                            target->weights, sums[run.tensor].f);
      }
    });
  }
}

// ---- Merging.

namespace {

// The changes of one tensor by the index of the element.
using IndexedChanges = std::vector<std::pair<uint64_t, uint32_t>>;

// Adds the differences of each element, modulo 2^(8 width), and drops those that are zero.
void AddUp(IndexedChanges* changes, int width) {
  const uint32_t mask = width == 4 ? ~uint32_t{0} : (uint32_t{1} << (8 * width)) - 1;
  std::sort(changes->begin(), changes->end());
  size_t kept = 0;
  for (size_t i = 0; i < changes->size();) {
    const uint64_t index = (*changes)[i].first;
    uint32_t d = 0;
    for (; i < changes->size() && (*changes)[i].first == index; ++i) d += (*changes)[i].second;
    if ((d & mask) != 0) (*changes)[kept++] = {index, d & mask};
  }
  changes->resize(kept);
}

void WriteMerged(uint32_t tensor, int width, uint64_t elements, const IndexedChanges& changes,
                 int tile_log2, DeltaChunkWriter* writer) {
  std::vector<DeltaTile> tiles;
  std::vector<uint8_t> bodies;
  DeltaChanges of_tile;
  auto next = changes.begin();
  for (uint64_t start = 0; start < elements; start += uint64_t{1} << tile_log2) {
    const uint64_t end = std::min(elements, start + (uint64_t{1} << tile_log2));
    of_tile.count = 0;
    for (; next != changes.end() && next->first < end; ++next) {
      of_tile.offset[of_tile.count] = static_cast<uint16_t>(next->first - start);
      of_tile.d[of_tile.count++] = next->second;
    }
    tiles.push_back(kernels::EncodeDeltaTile(width, tile_log2, static_cast<uint32_t>(end - start),
                                             of_tile, &bodies));
  }
  writer->Add(tensor, {.count = elements}, tiles, bodies);
}

}  // namespace

void MergeDeltas(absl::Span<const SignedChunk> chunks, absl::Span<const TensorSpec> layout,
                 const DeltaChunkOptions& options,
                 const std::function<void(std::string chunk)>& emit) {
  // The runs by tensor, so that only one tensor's changes are in memory.
  using RunOf = std::pair<const SignedChunk*, const DeltaChunk::Run*>;
  std::vector<std::vector<RunOf>> of_tensor(layout.size());
  for (const SignedChunk& part : chunks) {
    for (const DeltaChunk::Run& run : part.chunk.runs())
      of_tensor[run.tensor].emplace_back(&part, &run);
  }

  DeltaChunkWriter writer(options, emit);
  for (uint32_t tensor = 0; tensor < layout.size(); ++tensor) {
    if (of_tensor[tensor].empty()) continue;
    const auto width = static_cast<int>(DTypeBytes(layout[tensor].dtype));
    IndexedChanges changes;
    for (const auto& [part, run] : of_tensor[tensor]) {
      const DeltaShard& shard = run->shard;
      const auto sign = static_cast<uint32_t>(part->sign);
      part->chunk.ForEachTile(*run, [&](uint64_t start, const DeltaChanges& tile) {
        for (uint32_t r = 0; r < tile.count; ++r) {
          changes.emplace_back(kernels::IndexInTensor(shard, start + tile.offset[r]),
                               sign * tile.d[r]);
        }
      });
    }
    AddUp(&changes, width);
    WriteMerged(tensor, width, static_cast<uint64_t>(*NumElements(layout[tensor].shape)), changes,
                options.tile_log2, &writer);
  }
  writer.Finish();
}

}  // namespace sluice
