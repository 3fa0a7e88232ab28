#include "common/checkpoint/tensor_set.h"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstdlib>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/bf16.h"
#include "common/base/digest.h"
#include "common/base/f16.h"
#include "common/base/status.h"

namespace sluice {
namespace {

constexpr size_t kAlign = 64, kHugePage = 2 << 20;
constexpr int64_t kMaxBytes = int64_t{1} << 62;

struct DTypeRow {
  absl::string_view name;
  size_t bytes;
};
// One row per DType, in its order.
constexpr std::array<DTypeRow, 15> kDTypes = {{{"F32", 4},
                                               {"F16", 2},
                                               {"BF16", 2},
                                               {"F64", 8},
                                               {"F8_E4M3", 1},
                                               {"F8_E5M2", 1},
                                               {"I64", 8},
                                               {"I32", 4},
                                               {"I16", 2},
                                               {"I8", 1},
                                               {"U64", 8},
                                               {"U32", 4},
                                               {"U16", 2},
                                               {"U8", 1},
                                               {"BOOL", 1}}};

absl::Status CheckName(absl::string_view name) {
  if (name.empty()) return absl::InvalidArgumentError("a tensor has an empty name");
  for (const char c : name) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte <= ' ' || byte == 0x7f) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor name of ", name.size(),
                       " bytes holds a space or control character (byte ", int{byte}, ")"));
    }
  }
  return absl::OkStatus();
}

// Large sets use huge pages if the system allows, because one is allocated and freed with every
// version of the weights.
std::byte* AllocateZeroed(size_t bytes) {
  const size_t align = bytes >= kHugePage ? kHugePage : kAlign;
  void* const p =
      std::aligned_alloc(align, std::max<size_t>(1, (bytes + align - 1) / align) * align);
  if (p == nullptr) return nullptr;
  if (align == kHugePage) madvise(p, bytes, MADV_HUGEPAGE);  // A hint; it may fail.
  std::memset(p, 0, bytes);
  return static_cast<std::byte*>(p);
}

uint16_t FloatToHalf(float f) {
  const uint32_t bits = std::bit_cast<uint32_t>(f), sign = (bits >> 16) & 0x8000u,
                 magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);  // NaN.
  // Values of at least 65520 round to infinity.
  if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
  // Values below 2^-14 become subnormal. Adding 0.5 shifts them so that the addition itself rounds,
  // and the result's last bits are the mantissa.
  if (magnitude < 0x38800000u) {
    const float shifted = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (std::bit_cast<uint32_t>(shifted) - 0x3f000000u));
  }

  // Normal numbers: round to nearest even, then change the exponent's bias.
  const uint32_t rounded = magnitude + 0xfffu + ((magnitude >> 13) & 1);
  return static_cast<uint16_t>(sign | ((rounded - 0x38000000u) >> 13));
}

void Widen(DType dtype, const void* from, float* to, int64_t n) {
  const auto* narrow = static_cast<const uint16_t*>(from);
  if (dtype == DType::kF32) std::memcpy(to, from, n * sizeof(float));
  if (dtype == DType::kF16) std::transform(narrow, narrow + n, to, FloatFromF16);
  if (dtype == DType::kBF16) std::transform(narrow, narrow + n, to, FloatFromBf16);
}

void Narrow(const float* from, DType dtype, void* to, int64_t n) {
  auto* narrow = static_cast<uint16_t*>(to);
  if (dtype == DType::kF32) std::memcpy(to, from, n * sizeof(float));
  if (dtype == DType::kF16) std::transform(from, from + n, narrow, FloatToHalf);
  if (dtype == DType::kBF16) std::transform(from, from + n, narrow, Bf16FromFloat);
}

}  // namespace

size_t DTypeBytes(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].bytes; }
absl::string_view DTypeName(DType dtype) { return kDTypes[static_cast<size_t>(dtype)].name; }

absl::StatusOr<DType> DTypeFromName(absl::string_view name) {
  for (size_t i = 0; i < kDTypes.size(); ++i) {
    if (kDTypes[i].name == name) return static_cast<DType>(i);
  }
  return absl::InvalidArgumentError(
      absl::StrCat("unknown dtype \"", name, "\"; the known ones are ",
                   absl::StrJoin(kDTypes, ", ", [](std::string* out, const DTypeRow& row) {
                     absl::StrAppend(out, row.name);
                   })));
}

absl::StatusOr<DType> DTypeFromTorchName(absl::string_view name) {
  if (name == "float32") return DType::kF32;
  if (name == "float16") return DType::kF16;
  if (name == "bfloat16") return DType::kBF16;
  return absl::InvalidArgumentError(absl::StrCat(
      "unknown type of weights \"", name, "\"; the known ones are float32, float16 and bfloat16"));
}

std::string ShapeText(DType dtype, absl::Span<const int64_t> shape) {
  return absl::StrCat(DTypeName(dtype), " [", absl::StrJoin(shape, ", "), "]");
}

absl::StatusOr<int64_t> NumElements(absl::Span<const int64_t> shape) {
  int64_t n = 1;
  bool empty = false;  // A zero dimension does not hide an overflow of the others.
  for (const int64_t d : shape) {
    if (d < 0) return absl::InvalidArgumentError(absl::StrCat("negative dimension ", d));
    if (d == 0) empty = true;
    if (d > 0 && (__builtin_mul_overflow(n, d, &n) || n > kMaxBytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("[", absl::StrJoin(shape, ", "), "] has more than 2^62 elements"));
    }
  }
  return empty ? 0 : n;
}

absl::StatusOr<int64_t> NumBytes(const TensorSpec& spec) {
  SLUICE_ASSIGN_OR_RETURN(int64_t n, NumElements(spec.shape));
  if (__builtin_mul_overflow(n, static_cast<int64_t>(DTypeBytes(spec.dtype)), &n) ||
      n > kMaxBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat(ShapeText(spec.dtype, spec.shape), " has more than 2^62 bytes"));
  }
  return n;
}

std::string LayoutId(absl::Span<const TensorSpec> specs) {
  Sha256Stream hash;
  for (const TensorSpec& spec : specs) {
    hash.Update(absl::StrCat(spec.name, " ", DTypeName(spec.dtype), " ",
                             absl::StrJoin(spec.shape, "x"), "\n"));
  }
  return hash.Finish();
}

void TensorSet::Free::operator()(std::byte* p) const { std::free(p); }

absl::StatusOr<TensorSet> TensorSet::Create(std::vector<TensorSpec> specs) {
  std::sort(specs.begin(), specs.end(),
            [](const TensorSpec& a, const TensorSpec& b) { return a.name < b.name; });
  TensorSet set;
  // Each tensor starts at a multiple of kAlign.
  int64_t total = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    SLUICE_RETURN_IF_ERROR(CheckName(specs[i].name));
    if (i > 0 && specs[i].name == specs[i - 1].name) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", specs[i].name, " occurs twice"));
    }
    auto bytes = NumBytes(specs[i]);
    if (!bytes.ok()) return Annotate(bytes.status(), absl::StrCat("tensor ", specs[i].name));
    set.offsets_.push_back(total);
    set.bytes_.push_back(*bytes);
    total += static_cast<int64_t>((*bytes + kAlign - 1) / kAlign * kAlign);
    if (total > kMaxBytes)
      return absl::InvalidArgumentError("the tensors have more than 2^62 bytes together");
  }

  set.buffer_bytes_ = total;
  set.buffer_.reset(AllocateZeroed(total));
  if (set.buffer_ == nullptr)
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", total, " bytes of tensors"));
  set.layout_id_ = LayoutId(specs);
  set.specs_ = std::move(specs);
  return set;
}

TensorSet::TensorSet(const TensorSet& other)
    : specs_(other.specs_),
      offsets_(other.offsets_),
      bytes_(other.bytes_),
      buffer_bytes_(other.buffer_bytes_),
      layout_id_(other.layout_id_) {
  if (other.buffer_ == nullptr) return;
  buffer_.reset(AllocateZeroed(buffer_bytes_));
  SLUICE_CHECK_MSG(buffer_ != nullptr, "no memory to copy a TensorSet");
  std::memcpy(buffer_.get(), other.buffer_.get(), buffer_bytes_);
}

TensorSet& TensorSet::operator=(const TensorSet& other) {
  if (this != &other) *this = TensorSet(other);
  return *this;
}

int64_t TensorSet::Find(absl::string_view name) const {
  const auto it =
      std::lower_bound(specs_.begin(), specs_.end(), name,
                       [](const TensorSpec& spec, absl::string_view n) { return spec.name < n; });
  return it != specs_.end() && it->name == name ? it - specs_.begin() : -1;
}

absl::Status ConvertElements(DType from_dtype, const void* from, DType to_dtype, void* to,
                             int64_t n) {
  if (from_dtype == to_dtype) {
    std::memcpy(to, from, n * DTypeBytes(to_dtype));
    return absl::OkStatus();
  }
  if (!IsWeightType(from_dtype) || !IsWeightType(to_dtype)) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot convert ", DTypeName(from_dtype), " to ", DTypeName(to_dtype)));
  }
  constexpr int64_t kPiece = 4096;
  float piece[kPiece];
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t m = std::min(kPiece, n - i);
    Widen(from_dtype, static_cast<const std::byte*>(from) + i * DTypeBytes(from_dtype), piece, m);
    Narrow(piece, to_dtype, static_cast<std::byte*>(to) + i * DTypeBytes(to_dtype), m);
  }
  return absl::OkStatus();
}

namespace {

// Returns the index of the first element whose exponent bits are all ones, which means infinity or
// NaN; -1 if there is none.
template <typename Bits>
int64_t FirstWithAll(const void* data, int64_t n, Bits exponent) {
  const Bits* const bits = static_cast<const Bits*>(data);
  constexpr int64_t kPiece = 4096;
  for (int64_t i = 0; i < n; i += kPiece) {
    const int64_t end = std::min(n, i + kPiece);
    bool any = false;  // No branch inside, so that the loop is vectorised.
    for (int64_t j = i; j < end; ++j) any |= (bits[j] & exponent) == exponent;
    if (!any) continue;
    for (int64_t j = i; j < end; ++j) {
      if ((bits[j] & exponent) == exponent) return j;
    }
  }
  return -1;
}

}  // namespace

int64_t FirstNonFinite(DType dtype, const void* data, int64_t n) {
  SLUICE_CHECK_MSG(IsWeightType(dtype), std::string(DTypeName(dtype)));
  if (dtype == DType::kF32) return FirstWithAll<uint32_t>(data, n, 0x7f800000u);
  return FirstWithAll<uint16_t>(data, n, dtype == DType::kF16 ? 0x7c00 : 0x7f80);
}

absl::Status ConvertTensors(const TensorSet& from, TensorSet* to) {
  if (from.size() != to->size()) {
    return absl::InvalidArgumentError(
        absl::StrCat("there are ", from.size(), " tensors, but ", to->size(), " are needed"));
  }
  for (size_t i = 0; i < from.size(); ++i) {
    const TensorSpec &a = from.spec(i), &b = to->spec(i);
    if (a.name != b.name)
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", a.name, " where ", b.name, " is needed"));
    if (a.shape != b.shape) {
      return absl::InvalidArgumentError(absl::StrCat("tensor ", a.name, " is ",
                                                     ShapeText(a.dtype, a.shape),
                                                     "; wanted: ", ShapeText(b.dtype, b.shape)));
    }
    const absl::Status converted =
        ConvertElements(a.dtype, from.data(i), b.dtype, to->data(i), from.elements(i));
    if (!converted.ok()) return Annotate(converted, absl::StrCat("tensor ", a.name));
  }
  return absl::OkStatus();
}

}  // namespace sluice
