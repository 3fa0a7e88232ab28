#include <algorithm>
#include <bit>
#include <cstring>

#include "kernels/weight_delta/bits.h"
#include "kernels/weight_delta/op.h"
#include "kernels/weight_delta/words.h"

namespace sluice::kernels {
namespace {

// ---- Encoding.

// Writes bits to memory one after the other. Up to 8 bytes beyond the last one are overwritten.
class BitWriter {
 public:
  explicit BitWriter(uint8_t* out) : out_(out) {}

  void Put(uint64_t value, int width) {  // width <= 56, value < 2^width
    bits_ |= value << filled_;
    filled_ += static_cast<unsigned>(width);
    std::memcpy(out_, &bits_, 8);
    out_ += filled_ / 8;
    bits_ >>= filled_ / 8 * 8;
    filled_ %= 8;
  }
  void PutUnary(uint64_t q) {
    for (; q >= 48; q -= 48) Put(0, 48);
    Put(uint64_t{1} << q, static_cast<int>(q) + 1);
  }
  // Fills the last byte with zeros, and returns where the next one goes.
  uint8_t* Finish() { return out_ + (filled_ > 0); }

 private:
  uint8_t* out_;
  uint64_t bits_ = 0;
  unsigned filled_ = 0;  // Bits of bits_; below 8 between two calls.
};

constexpr size_t kWriteSlack = 16;  // Beyond a body, for writes of 8 bytes.

// Writes a SPARSE body and returns its size.
template <typename Word>
size_t PackSparse(int k, const DeltaChanges& changes, uint8_t* out) {
  BitWriter writer(out);
  Word escapes[DeltaChanges::kMost / 4];
  uint32_t escape_count = 0, halves = 0;
  uint32_t next = 0;  // The first element after the last change.
  for (uint32_t r = 0; r < changes.count; ++r) {
    const Word d = static_cast<Word>(changes.d[r]);
    const uint32_t code = SparseCode(d);
    const uint32_t low = (changes.offset[r] - next) & ((1u << k) - 1);
    next = changes.offset[r] + 1u;
    writer.Put(low | code << k, k + 2);
    escapes[escape_count] = d;
    escape_count += code >= kHalfWord;
    halves += code == kHalfWord;
  }
  next = 0;
  for (uint32_t r = 0; r < changes.count; ++r) {
    writer.PutUnary((changes.offset[r] - next) >> k);
    next = changes.offset[r] + 1u;
  }

  uint8_t* half = writer.Finish();
  uint8_t* whole = half + halves * sizeof(Word) / 2;
  for (uint32_t e = 0; e < escape_count; ++e) {
    if (SparseCode(escapes[e]) == kHalfWord) {
      std::memcpy(half, &escapes[e], sizeof(Word) / 2);
      half += sizeof(Word) / 2;
    } else {
      std::memcpy(whole, &escapes[e], sizeof(Word));
      whole += sizeof(Word);
    }
  }
  return static_cast<size_t>(whole - out);
}

// The unary bits of z >> k, and how many of them are escapes.
struct UnaryCost {
  uint64_t bits = 0, escapes = 0;
};
template <typename Word>
#if defined(__x86_64__) && !defined(SLUICE_SANITIZED) && !defined(__clang__)  // As in fingerprint.
__attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#endif
UnaryCost CostOfUnary(const Word* z, uint32_t n, int k) {
  uint32_t bits = 0, escapes = 0;
  for (uint32_t i = 0; i < n; ++i) {
    const Word q = static_cast<Word>(z[i] >> k);
    bits += q < kMostUnary ? q : kMostUnary;
    escapes += q >= kMostUnary;
  }
  return {uint64_t{bits} + n, escapes};
}

// Returns the size of the smallest DENSE body, and its k.
template <typename Word>
uint64_t FindDenseK(const Word* z, uint32_t n, int* best_k) {
  uint64_t best = ~uint64_t{0};
  for (int k = 0; k < kWordBits<Word>; ++k) {
    if ((uint64_t{n} * static_cast<uint64_t>(k + 1) + 7) / 8 >= best)
      break;  // Longer from here on.
    const UnaryCost cost = CostOfUnary(z, n, k);
    const uint64_t bytes =
        (uint64_t{n} * static_cast<uint64_t>(k) + cost.bits + 7) / 8 + cost.escapes * sizeof(Word);
    if (bytes < best) best = bytes, *best_k = k;
  }
  return best;
}

template <typename Word>
void PackDense(const Word* z, uint32_t n, int k, uint8_t* out) {
  BitWriter writer(out);
  for (uint32_t i = 0; i < n; ++i) writer.Put(z[i] & ((1u << k) - 1), k);
  for (uint32_t i = 0; i < n; ++i) writer.PutUnary(std::min<uint32_t>(z[i] >> k, kMostUnary));
  uint8_t* escape = writer.Finish();
  for (uint32_t i = 0; i < n; ++i) {
    const Word q = static_cast<Word>(z[i] >> k);
    if (q < kMostUnary) continue;
    std::memcpy(escape, &q, sizeof(Word));
    escape += sizeof(Word);
  }
}

template <typename Word>
DeltaTile EncodeWords(int tile_log2, uint32_t n, const DeltaChanges& changes,
                      std::vector<uint8_t>* bodies) {
  DeltaTile tile;
  const size_t begin = bodies->size(), raw = size_t{n} * sizeof(Word);
  const auto finish = [&](DeltaMode mode, int k, size_t bytes) {
    bodies->resize(begin + bytes);
    tile.end = static_cast<uint32_t>(begin + bytes);
    tile.k = static_cast<uint8_t>(k);
    tile.mode = mode;
    return tile;
  };
  if (changes.count == 0) return finish(DeltaMode::kSame, 0, 0);
  tile.changed_less_one = static_cast<uint16_t>(changes.count - 1);

  if (uint64_t{4} * changes.count <= n) {
    const int k = SparseK(changes.count, n);
    // Fields, at most n / 2^k + n_changed bits of unary numbers, and escapes.
    const size_t most =
        (changes.count * size_t(k + 3) + (n >> k)) / 8 + changes.count * sizeof(Word) + kWriteSlack;
    bodies->resize(begin + most);
    const size_t bytes = PackSparse<Word>(k, changes, bodies->data() + begin);
    if (bytes < raw) return finish(DeltaMode::kSparse, k, bytes);
    bodies->resize(begin);
  } else if (tile_log2 == kDeltaTileLog2) {
    Word z[1 << kDeltaTileLog2] = {};
    for (uint32_t r = 0; r < changes.count; ++r)
      z[changes.offset[r]] = ZigZag(static_cast<Word>(changes.d[r]));
    int k = 0;
    const uint64_t bytes = FindDenseK(z, n, &k);
    if (bytes < raw) {
      bodies->resize(begin + bytes + kWriteSlack);
      PackDense(z, n, k, bodies->data() + begin);
      return finish(DeltaMode::kDense, k, bytes);
    }
  }

  bodies->resize(begin + raw);
  for (uint32_t r = 0; r < changes.count; ++r)
    Store(bodies->data() + begin, changes.offset[r], static_cast<Word>(changes.d[r]));
  return finish(DeltaMode::kPlain, 0, raw);
}

// Sums T_l R_l (now - old) over changes. The changes of one block of the fingerprint are summed
// before they are multiplied by T_l.
class Fold {
 public:
  Fold(uint64_t tid, uint64_t* sum) : tid_(tid), sum_(sum) {}
  ~Fold() { AddBlock(); }

  template <typename Word>
  void Add(uint64_t index, Word now, Word old) {
    if (index / kFingerprintBlock != block_) {
      AddBlock();
      block_ = index / kFingerprintBlock;
      part_[0] = part_[1] = 0;
    }
    const uint64_t change = uint64_t{now} - uint64_t{old};
    part_[0] += keys_.r[0][index % kFingerprintBlock] * change;
    part_[1] += keys_.r[1][index % kFingerprintBlock] * change;
  }

 private:
  void AddBlock() {
    for (int lane = 0; lane < 2; ++lane) sum_[lane] += BlockKey(tid_, lane, block_) * part_[lane];
  }

  const ElementKeys& keys_ = ElementKeys::Get();
  const uint64_t tid_;
  uint64_t* const sum_;
  uint64_t block_ = 0;
  uint64_t part_[2] = {0, 0};
};

// ---- Decoding.

using Body = std::span<const uint8_t>;

// Returns at least 57 bits of the body from bit `at` on. Bits beyond its end are zero.
uint64_t LoadBits(Body body, uint64_t at) {
  const uint64_t byte = at / 8;
  uint64_t bits = 0;
  if (byte + 8 <= body.size()) {
    std::memcpy(&bits, body.data() + byte, 8);
  } else if (byte < body.size()) {
    std::memcpy(&bits, body.data() + byte, body.size() - byte);
  }
  return bits >> at % 8;
}

// Reads a unary number from bit *at on. Returns false if the body ends before it does.
bool ReadUnary(Body body, uint64_t* at, uint64_t* q) {
  *q = 0;
  while (*at < 8 * body.size()) {
    const uint64_t bits = LoadBits(body, *at);
    const auto zeros = static_cast<uint64_t>(std::countr_zero(bits));
    if (bits != 0) {
      *q += zeros;
      *at += zeros + 1;
      return true;
    }
    *q += 57;
    *at += 57;
  }
  return false;
}

// Moves *at to the next byte. Returns false if a bit before it is not zero.
bool SkipPadding(Body body, uint64_t* at) {
  const uint64_t end = (*at + 7) / 8 * 8;
  const bool zero = (LoadBits(body, *at) & ((1u << (end - *at)) - 1)) == 0;
  *at = end;
  return zero;
}

constexpr char kTooShort[] = "its body ends too early";
constexpr char kPadded[] = "its padding is not zero";
constexpr char kNoChange[] = "it has a difference of zero";
constexpr char kWrongSize[] = "its body has another length than its numbers";
constexpr char kWrongCount[] = "it has another number of changes than its entry says";

template <typename Word>
const char* UnpackSparse(uint32_t n, uint32_t count, int k, Body body, DeltaChanges* changes) {
  const auto width = static_cast<uint64_t>(k + 2);
  uint64_t at = count * width;
  if (k > 15) return "its k is above 15";
  if (count > n) return kWrongCount;
  if (at > 8 * body.size()) return kTooShort;

  // changes->d holds the codes until the escapes are read.
  uint64_t next = 0, halves = 0, wholes = 0;
  for (uint32_t r = 0; r < count; ++r) {
    const auto field = static_cast<uint32_t>(LoadBits(body, r * width)) & ((1u << width) - 1);
    uint64_t q;
    if (!ReadUnary(body, &at, &q)) return kTooShort;
    const uint64_t index = next + (q << k) + (field & ((1u << k) - 1));
    if (index >= n) return "a change lies beyond its end";
    next = index + 1;
    changes->offset[r] = static_cast<uint16_t>(index);
    changes->d[r] = field >> k;
    halves += changes->d[r] == kHalfWord;
    wholes += changes->d[r] == kWholeWord;
  }

  if (!SkipPadding(body, &at)) return kPadded;
  if (sizeof(Word) == 1 && halves > 0) return "it has differences of half an element of 8 bits";
  if (body.size() - at / 8 != halves * (sizeof(Word) / 2) + wholes * sizeof(Word))
    return kWrongSize;
  const uint8_t* half = body.data() + at / 8;
  const uint8_t* whole = half + halves * (sizeof(Word) / 2);
  for (uint32_t r = 0; r < count; ++r) {
    const uint32_t code = changes->d[r];
    auto d = static_cast<Word>(1 - 2 * static_cast<int>(code));  // +1 or -1, without a branch.
    if (code == kHalfWord) {
      uint32_t bits = 0;
      std::memcpy(&bits, half, sizeof(Word) / 2);
      half += sizeof(Word) / 2;
      d = ExtendHalfWord<Word>(bits);
    } else if (code == kWholeWord) {
      std::memcpy(&d, whole, sizeof(Word));
      whole += sizeof(Word);
    }
    if (d == 0) return kNoChange;
    changes->d[r] = d;
  }
  changes->count = count;
  return nullptr;
}

// Adds d of element `offset` if it is not zero. The caller has room for n changes.
void AddIfChanged(uint32_t offset, uint32_t d, DeltaChanges* changes) {
  changes->offset[changes->count] = static_cast<uint16_t>(offset);
  changes->d[changes->count] = d;
  changes->count += d != 0;
}

template <typename Word>
const char* UnpackDense(uint32_t n, int k, Body body, DeltaChanges* changes) {
  if (k >= kWordBits<Word>) return "its k is not below the bits of an element";
  uint64_t at = uint64_t{n} * static_cast<uint64_t>(k), escapes = 0;
  if (at > 8 * body.size()) return kTooShort;

  // changes->d holds the unary numbers until the rest is read. Changes never overtake them.
  for (uint32_t i = 0; i < n; ++i) {
    uint64_t q;
    if (!ReadUnary(body, &at, &q)) return kTooShort;
    if (q > kMostUnary) return "a unary number is above 24";
    changes->d[i] = static_cast<uint32_t>(q);
    escapes += q == kMostUnary;
  }
  if (!SkipPadding(body, &at)) return kPadded;
  if (body.size() - at / 8 != escapes * sizeof(Word)) return kWrongSize;

  const uint8_t* escape = body.data() + at / 8;
  for (uint32_t i = 0; i < n; ++i) {
    uint64_t q = changes->d[i];
    if (q == kMostUnary) {
      Word whole;
      std::memcpy(&whole, escape, sizeof(Word));
      escape += sizeof(Word);
      q = whole;
    }
    if (q >> (kWordBits<Word> - k) != 0) return "a number has more bits than an element";
    const uint64_t low = LoadBits(body, uint64_t{i} * static_cast<uint64_t>(k));
    const auto z = static_cast<Word>(q << k | (low & ((uint64_t{1} << k) - 1)));
    AddIfChanged(i, UnZigZag(z), changes);
  }
  return nullptr;
}

template <typename Word>
const char* DecodeWords(int tile_log2, uint32_t n, const DeltaTile& tile, Body body,
                        DeltaChanges* changes) {
  changes->count = 0;
  const uint32_t count = tile.changed_less_one + 1u;
  switch (tile.mode) {
    case DeltaMode::kSame:
      return tile.changed_less_one == 0 && tile.k == 0 && body.empty()
                 ? nullptr
                 : "it is SAME, but has changes or a body";
    case DeltaMode::kSparse: return UnpackSparse<Word>(n, count, tile.k, body, changes);
    case DeltaMode::kDense: {
      if (tile_log2 != kDeltaTileLog2) return "it is DENSE, which only tiles of 8192 can be";
      if (const char* const wrong = UnpackDense<Word>(n, tile.k, body, changes)) return wrong;
      break;
    }
    case DeltaMode::kPlain:
      if (tile.k != 0 || body.size() != size_t{n} * sizeof(Word)) return kWrongSize;
      for (uint32_t i = 0; i < n; ++i) AddIfChanged(i, Load<Word>(body.data(), i), changes);
      break;
    default: return "there is no such mode";
  }
  return changes->count == count ? nullptr : kWrongCount;
}

// ---- Applying.

// How an element is stored: its bits, and back from them. Stored numbers are exact.
template <typename W>
struct AsPublished {
  using Word = W;
  using Stored = W;
  static Word Read(Stored stored) { return stored; }
  static Stored Write(Word bits) { return bits; }
};
struct Bf16AsF32 {
  using Word = uint16_t;
  using Stored = uint32_t;
  static Word Read(Stored stored) { return static_cast<Word>(stored >> 16); }
  static Stored Write(Word bits) { return Stored{bits} << 16; }
};
struct F16AsF32 {
  using Word = uint16_t;
  using Stored = uint32_t;
  static Word Read(Stored stored) {
    const uint32_t sign = stored >> 16 & 0x8000, exponent = stored >> 23 & 255,
                   mantissa = stored >> 13 & 0x3ff;
    if (exponent == 255) return static_cast<Word>(sign | 0x7c00 | mantissa);
    if (exponent > 112) return static_cast<Word>(sign | (exponent - 112) << 10 | mantissa);
    // A subnormal of fp16 is a multiple of 2^-24.
    const float multiple = std::bit_cast<float>(stored & 0x7fffffff) * 0x1p24f;
    return static_cast<Word>(sign | static_cast<uint32_t>(multiple));
  }
  static Stored Write(Word bits) {
    const uint32_t sign = (bits & 0x8000u) << 16, exponent = bits >> 10 & 31,
                   mantissa = bits & 0x3ff;
    if (exponent == 31) return sign | 0x7f800000 | mantissa << 13;
    if (exponent > 0) return sign | (exponent + 112) << 23 | mantissa << 13;
    return sign | std::bit_cast<uint32_t>(static_cast<float>(mantissa) * 0x1p-24f);
  }
};

// Finds the number of an element in panels. It is called with rising indexes, so it divides only
// where a new row begins.
class NumberOfPanel {
 public:
  explicit NumberOfPanel(const DeltaPlace& place) : place_(place) {}

  uint64_t operator()(uint64_t index) {
    if (index - row_begin_ >= place_.columns) FindRow(index / place_.columns);
    const uint64_t column = index - row_begin_, pair = place_.pair - 1;
    return row_number_ + (column & ~pair) * place_.lanes + (column & pair);
  }

 private:
  void FindRow(uint64_t row) {
    const uint64_t output = place_.first + row / place_.lanes * place_.stride + row % place_.lanes;
    row_begin_ = row * place_.columns;
    row_number_ = output / place_.lanes * place_.panel + output % place_.lanes * place_.pair;
  }

  const DeltaPlace& place_;
  uint64_t row_begin_ = ~uint64_t{0} >> 1;  // Beyond any index, so that the first call finds a row.
  uint64_t row_number_ = 0;                 // Number of the row's first column.
};

// Adds sign d to each changed element. number(index in the tensor) is its place among the stored
// numbers in `memory`, or kNotHeld.
template <typename Form, typename Number>
void ApplyChanges(const DeltaShard& from, uint64_t start, const DeltaChanges& changes, int sign,
                  Number number, void* memory, uint64_t sum[2]) {
  using Word = typename Form::Word;
  using Stored = typename Form::Stored;
  // The elements of a group of changes are on their way from memory together.
  constexpr uint32_t kGroup = 64;
  uint64_t indexes[kGroup], numbers[kGroup];
  Fold fold(from.tid, sum);
  for (uint32_t first = 0; first < changes.count; first += kGroup) {
    const uint32_t group = std::min(kGroup, changes.count - first);
    for (uint32_t r = 0; r < group; ++r) {
      indexes[r] = IndexInTensor(from, start + changes.offset[first + r]);
      numbers[r] = number(indexes[r]);
      if (numbers[r] == kNotHeld) continue;
      __builtin_prefetch(static_cast<const char*>(memory) + numbers[r] * sizeof(Stored), 1);
    }
    for (uint32_t r = 0; r < group; ++r) {
      if (numbers[r] == kNotHeld) continue;
      const Word before = Form::Read(Load<Stored>(memory, numbers[r]));
      const auto d = static_cast<Word>(changes.d[first + r]);
      const Word after =
          FromOrd(static_cast<Word>(sign > 0 ? ToOrd(before) + d : ToOrd(before) - d));
      Store(memory, numbers[r], Form::Write(after));
      fold.Add(indexes[r], after, before);
    }
  }
}

}  // namespace

DeltaTile EncodeDeltaTile(int width, int tile_log2, uint32_t n, const DeltaChanges& changes,
                          std::vector<uint8_t>* bodies) {
  return WithWord(
      width, [&]<typename Word>(Word) { return EncodeWords<Word>(tile_log2, n, changes, bodies); });
}

void EncodeDelta(const DeltaSource& source, int width, int tile_log2, uint64_t tile_begin,
                 uint64_t tile_end, std::vector<DeltaTile>* tiles, std::vector<uint8_t>* bodies,
                 uint64_t sum[2]) {
  const auto detect = DeltaDetectors().front().detect;
  DeltaChanges changes;
  WithWord(width, [&]<typename Word>(Word) {
    Fold fold(source.shard.tid, sum);
    for (uint64_t t = tile_begin; t < tile_end; ++t) {
      const uint64_t start = t << tile_log2;
      const auto n =
          static_cast<uint32_t>(std::min(source.shard.count - start, uint64_t{1} << tile_log2));
      const char* const now = static_cast<const char*>(source.now) + start * sizeof(Word);
      char* const shadow = static_cast<char*>(source.shadow) + start * sizeof(Word);

      detect(width, now, shadow, n, &changes);
      for (uint32_t r = 0; r < changes.count; ++r) {
        const uint32_t i = changes.offset[r];
        const Word after = Load<Word>(now, i);
        fold.Add(IndexInTensor(source.shard, start + i), after, Load<Word>(shadow, i));
        Store(shadow, i, after);
      }
      tiles->push_back(EncodeWords<Word>(tile_log2, n, changes, bodies));
    }
  });
}

const char* DecodeDeltaTile(int width, int tile_log2, uint32_t n, const DeltaTile& tile,
                            std::span<const uint8_t> body, DeltaChanges* changes) {
  return WithWord(width, [&]<typename Word>(Word) {
    return DecodeWords<Word>(tile_log2, n, tile, body, changes);
  });
}

void ApplyDelta(const DeltaShard& from, uint64_t start, const DeltaChanges& changes, int sign,
                const DeltaShard& to, int width, void* weights, uint64_t sum[2]) {
  const auto element = [&](uint64_t index) { return ElementOfShard(to, index); };
  WithWord(width, [&]<typename Word>(Word) {
    ApplyChanges<AsPublished<Word>>(from, start, changes, sign, element, weights, sum);
  });
}

void ApplyDeltaInPlace(const DeltaShard& from, uint64_t start, const DeltaChanges& changes,
                       int sign, const DeltaPlace& to, int width, uint64_t sum[2]) {
  const auto apply = [&](auto number) {
    switch (to.form) {
      case DeltaForm::kAsPublished:
        return WithWord(width, [&]<typename Word>(Word) {
          ApplyChanges<AsPublished<Word>>(from, start, changes, sign, number, to.memory, sum);
        });
      case DeltaForm::kBf16AsF32:
        return ApplyChanges<Bf16AsF32>(from, start, changes, sign, number, to.memory, sum);
      case DeltaForm::kF16AsF32:
        return ApplyChanges<F16AsF32>(from, start, changes, sign, number, to.memory, sum);
    }
  };
  if (to.columns == 0) return apply([](uint64_t index) { return index; });
  apply(NumberOfPanel(to));
}

}  // namespace sluice::kernels
