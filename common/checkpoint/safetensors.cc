#include "common/checkpoint/safetensors.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "common/base/file.h"
#include "common/base/json_excerpt.h"
#include "common/base/status.h"
#include "common/checkpoint/json.h"
#include "common/checkpoint/tensor_source.h"

namespace sluice {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kMaxHeaderDepth = 4;
constexpr int64_t kPieceElements = 1 << 20;  // Of a tensor, written at once.

uint64_t LoadLittle64(const unsigned char* p) {
  uint64_t value = 0;
  for (int i = 7; i >= 0; --i) value = value << 8 | p[i];
  return value;
}

std::string StoreLittle64(uint64_t value) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) bytes.push_back(static_cast<char>(value >> (8 * i)));
  return bytes;
}

absl::Status ReadAt(int fd, int64_t offset, void* to, int64_t n, const std::string& path) {
  auto* out = static_cast<char*>(to);
  while (n > 0) {
    const ssize_t got = pread(fd, out, n, offset);
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return ErrnoStatus(errno, absl::StrCat("read ", path));
    if (got == 0)
      return absl::DataLossError(
          absl::StrCat(path, ": ends at byte ", offset, "; ", n, " more bytes are needed"));
    out += got, offset += got, n -= got;
  }
  return absl::OkStatus();
}

// Parses a list of non-negative integers.
absl::StatusOr<std::vector<int64_t>> ParseIntegers(const Json& value, absl::string_view what) {
  if (!value.is_array())
    return absl::InvalidArgumentError(absl::StrCat(what, " is not a list: ", JsonExcerpt(value)));
  std::vector<int64_t> out;
  for (const Json& item : value) {
    if (!item.is_number_unsigned() || item.get<uint64_t>() > static_cast<uint64_t>(INT64_MAX)) {
      return absl::InvalidArgumentError(
          absl::StrCat(what, " holds ", JsonExcerpt(item), "; wanted: integers in [0, 2^63)"));
    }
    out.push_back(item.get<int64_t>());
  }
  return out;
}

// Parses one member of the header: {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}. The
// offsets count from the end of the header.
absl::StatusOr<SafetensorsFile::Entry> ParseEntry(const std::string& name, const Json& value,
                                                  int64_t data_start, int64_t data_bytes) {
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (!value.is_object() || !value.contains(key))
      return absl::InvalidArgumentError(absl::StrCat("has no ", key));
  }
  if (value.size() != 3)
    return absl::InvalidArgumentError(absl::StrCat("has unknown keys: ", JsonExcerpt(value)));
  if (!value["dtype"].is_string()) return absl::InvalidArgumentError("dtype is not a string");

  SafetensorsFile::Entry entry;
  entry.spec.name = name;
  SLUICE_ASSIGN_OR_RETURN(entry.spec.dtype,
                          DTypeFromName(Printable(value["dtype"].get<std::string>())));
  SLUICE_ASSIGN_OR_RETURN(entry.spec.shape, ParseIntegers(value["shape"], "shape"));
  SLUICE_ASSIGN_OR_RETURN(const std::vector<int64_t> range,
                          ParseIntegers(value["data_offsets"], "data_offsets"));
  if (range.size() != 2 || range[0] > range[1] || range[1] > data_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("data_offsets ", JsonExcerpt(value["data_offsets"]),
                     " do not lie in the file's ", data_bytes, " bytes of data"));
  }
  SLUICE_ASSIGN_OR_RETURN(const int64_t needed, NumBytes(entry.spec));
  if (needed != range[1] - range[0]) {
    return absl::InvalidArgumentError(
        absl::StrCat(ShapeText(entry.spec.dtype, entry.spec.shape), " needs ", needed,
                     " bytes, but data_offsets give ", range[1] - range[0]));
  }
  entry.offset = data_start + range[0];
  entry.bytes = needed;
  return entry;
}

// Checks that each tensor starts where the one before it ends, and that the last ends with the
// file.
absl::Status CheckNoGaps(const std::vector<SafetensorsFile::Entry>& entries, int64_t data_start,
                         int64_t file_bytes) {
  int64_t end = data_start;
  for (const auto& entry : entries) {
    if (entry.offset != end) {
      return absl::InvalidArgumentError(absl::StrCat(
          "tensor ", Printable(entry.spec.name), " starts at byte ", entry.offset, " of the file, ",
          entry.offset < end ? "inside the tensor before it, which ends at "
                             : "after a hole that starts at ",
          end));
    }
    end += entry.bytes;
  }
  if (end != file_bytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("the last tensor ends at byte ", end, ", but the file ends at ", file_bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsFile> SafetensorsFile::Open(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const int fd, OpenToRead(path));
  SafetensorsFile file(path, fd);
  if (absl::Status status = file.ReadHeader(); !status.ok()) return Annotate(status, path);
  return file;
}

SafetensorsFile::~SafetensorsFile() {
  if (fd_ >= 0) close(fd_);
}

SafetensorsFile::SafetensorsFile(SafetensorsFile&& other) noexcept
    : path_(std::move(other.path_)),
      fd_(other.fd_),
      entries_(std::move(other.entries_)),
      metadata_(std::move(other.metadata_)) {
  other.fd_ = -1;
}

absl::Status SafetensorsFile::ReadHeader() {
  struct stat info;
  if (fstat(fd_, &info) != 0) return ErrnoStatus(errno, "stat");
  // The length comes from an untrusted file, so it is checked before memory is allocated for it.
  unsigned char prefix[8];
  if (info.st_size < 8)
    return absl::InvalidArgumentError(
        absl::StrCat("has ", info.st_size, " bytes, but a safetensors file has at least 8"));
  SLUICE_RETURN_IF_ERROR(ReadAt(fd_, 0, prefix, 8, path_));
  const uint64_t header_bytes = LoadLittle64(prefix);
  if (header_bytes > static_cast<uint64_t>(kMaxSafetensorsHeader)) {
    return absl::InvalidArgumentError(absl::StrCat("says that its header has ", header_bytes,
                                                   " bytes; the limit is ", kMaxSafetensorsHeader));
  }

  const int64_t data_start = 8 + static_cast<int64_t>(header_bytes);
  if (data_start > info.st_size) {
    return absl::InvalidArgumentError(absl::StrCat("is truncated: it has ", info.st_size,
                                                   " bytes, but its header ends at ", data_start));
  }

  std::string text(header_bytes, '\0');
  SLUICE_RETURN_IF_ERROR(ReadAt(fd_, 8, text.data(), text.size(), path_));
  SLUICE_ASSIGN_OR_RETURN(const Json header, ParseJson(text, "header", kMaxHeaderDepth));
  if (!header.is_object()) return absl::InvalidArgumentError("the header is not a JSON object");

  for (const auto& [name, value] : header.items()) {
    if (name == "__metadata__") {
      if (!value.is_object()) return absl::InvalidArgumentError("__metadata__ is not an object");
      for (const auto& [key, item] : value.items()) {
        if (!item.is_string())
          return absl::InvalidArgumentError(
              absl::StrCat("__metadata__.", Printable(key), " is not a string"));
        metadata_[key] = item.get<std::string>();
      }
      continue;
    }
    auto entry = ParseEntry(name, value, data_start, info.st_size - data_start);
    if (!entry.ok()) return Annotate(entry.status(), absl::StrCat("tensor ", Printable(name)));
    entries_.push_back(*std::move(entry));
  }

  // Empty tensors share their offset with the next one, so the end is compared too.
  std::sort(entries_.begin(), entries_.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.offset, a.offset + a.bytes) < std::pair(b.offset, b.offset + b.bytes);
  });
  return CheckNoGaps(entries_, data_start, info.st_size);
}

absl::Status SafetensorsFile::Read(const Entry& entry, absl::Span<std::byte> to) const {
  SLUICE_CHECK(static_cast<int64_t>(to.size()) == entry.bytes);
  return ReadAt(fd_, entry.offset, to.data(), entry.bytes, path_);
}

absl::Status SafetensorsFile::ReadElements(const Entry& entry, int64_t first, int64_t count,
                                           void* to) const {
  const int64_t size = static_cast<int64_t>(DTypeBytes(entry.spec.dtype));
  SLUICE_CHECK(first >= 0 && (first + count) * size <= entry.bytes);
  return ReadAt(fd_, entry.offset + first * size, to, count * size, path_);
}

absl::StatusOr<TensorSet> ReadSafetensors(const std::string& path) {
  SLUICE_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::Open(path));
  std::vector<TensorSpec> specs;
  for (const auto& entry : file.entries()) specs.push_back(entry.spec);
  auto set = TensorSet::Create(std::move(specs));
  if (!set.ok()) return Annotate(set.status(), path);
  for (const auto& entry : file.entries()) {
    const size_t i = set->Find(entry.spec.name);
    SLUICE_RETURN_IF_ERROR(file.Read(entry, {set->data(i), static_cast<size_t>(entry.bytes)}));
  }
  return set;
}

absl::Status WriteSafetensors(const std::string& path, const TensorSource& tensors,
                              absl::Span<const size_t> indices,
                              const std::map<std::string, std::string>& metadata,
                              FileDigest* digest) {
  // The header lists the tensors with their offsets; the data follows in the same order.
  Json header = Json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  int64_t offset = 0;
  for (const size_t i : indices) {
    const TensorSpec& spec = tensors.specs()[i];
    SLUICE_ASSIGN_OR_RETURN(const int64_t bytes, NumBytes(spec));
    header[spec.name] = {{"dtype", std::string(DTypeName(spec.dtype))},
                         {"shape", spec.shape},
                         {"data_offsets", {offset, offset + bytes}}};
    offset += bytes;
  }

  std::string head = header.dump();
  head.resize((head.size() + 7) / 8 * 8, ' ');  // The data must start at a multiple of 8.
  head = StoreLittle64(head.size()) + head;
  return WriteFileInPieces(
      path,
      [&](AppendFn append) -> absl::Status {
        SLUICE_RETURN_IF_ERROR(append(head));
        std::string piece;
        for (const size_t i : indices) {
          const TensorSpec& spec = tensors.specs()[i];
          const int64_t size = static_cast<int64_t>(DTypeBytes(spec.dtype));
          SLUICE_ASSIGN_OR_RETURN(const int64_t elements, NumElements(spec.shape));
          for (int64_t first = 0; first < elements; first += kPieceElements) {
            const int64_t count = std::min(kPieceElements, elements - first);
            piece.resize(static_cast<size_t>(count * size));
            SLUICE_RETURN_IF_ERROR(tensors.Read(i, first, count, piece.data()));
            SLUICE_RETURN_IF_ERROR(append(piece));
          }
        }
        return absl::OkStatus();
      },
      digest);
}

absl::Status WriteSafetensors(const std::string& path, const TensorSource& tensors,
                              const std::map<std::string, std::string>& metadata,
                              FileDigest* digest) {
  std::vector<size_t> all(tensors.specs().size());
  for (size_t i = 0; i < all.size(); ++i) all[i] = i;
  return WriteSafetensors(path, tensors, all, metadata, digest);
}

absl::Status WriteSafetensors(const std::string& path, const TensorSet& tensors,
                              const std::map<std::string, std::string>& metadata,
                              FileDigest* digest) {
  return WriteSafetensors(path, SetSource(&tensors), metadata, digest);
}

}  // namespace sluice
