#include "common/checkpoint/tensor_source.h"

#include <algorithm>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace sluice {

absl::Status SetSource::Read(size_t i, int64_t first, int64_t count, void* to) const {
  const int64_t size = static_cast<int64_t>(DTypeBytes(set_->spec(i).dtype));
  std::memcpy(to, set_->data(i) + first * size, count * size);
  return absl::OkStatus();
}

FileSource::FileSource(std::vector<SafetensorsFile> files) : files_(std::move(files)) {
  for (const SafetensorsFile& file : files_) {
    for (const SafetensorsFile::Entry& entry : file.entries()) places_.push_back({&file, &entry});
  }
  std::sort(places_.begin(), places_.end(),
            [](const Place& a, const Place& b) { return a.entry->spec.name < b.entry->spec.name; });
  for (const Place& place : places_) specs_.push_back(place.entry->spec);
}

absl::Status FileSource::Read(size_t i, int64_t first, int64_t count, void* to) const {
  return places_[i].file->ReadElements(*places_[i].entry, first, count, to);
}

absl::Status RoundedSource::Read(size_t i, int64_t first, int64_t count, void* to) const {
  const TensorSpec& spec = specs_[i];
  if (spec.dtype == from_->specs()[i].dtype) return from_->Read(i, first, count, to);
  std::vector<float> exact(count);
  SLUICE_RETURN_IF_ERROR(from_->Read(i, first, count, exact.data()));
  SLUICE_RETURN_IF_ERROR(ConvertElements(DType::kF32, exact.data(), spec.dtype, to, count));
  const int64_t bad = FirstNonFinite(spec.dtype, to, count);
  if (bad < 0) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat("element ", first + bad, " of ", spec.name, " is ", exact[bad],
                   ", which is too large for ", DTypeName(spec.dtype),
                   ", the type that it has in model.path; start from a float32 copy of the model"));
}

absl::StatusOr<TensorSet> ReadAll(const TensorSource& source) {
  SLUICE_ASSIGN_OR_RETURN(TensorSet set,
                          TensorSet::Create({source.specs().begin(), source.specs().end()}));
  for (size_t i = 0; i < set.size(); ++i)
    SLUICE_RETURN_IF_ERROR(source.Read(i, 0, set.elements(i), set.data(i)));
  return set;
}

}  // namespace sluice
