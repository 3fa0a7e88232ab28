#include "common/models/huge_buffer.h"

#include <sys/mman.h>

#include "absl/strings/str_cat.h"

namespace sluice {
namespace {

constexpr int64_t kHugePage = 2 << 20, kPage = 4096;

}  // namespace

absl::StatusOr<HugeBuffer> HugeBuffer::Create(int64_t bytes, const std::string& what) {
  // mmap() aligns to small pages only. Map one huge page more, and unmap what lies in front of the
  // aligned address and behind the last byte.
  const int64_t mapped = bytes + kHugePage;
  void* const p = mmap(nullptr, mapped, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (p == MAP_FAILED) {
    return absl::ResourceExhaustedError(
        absl::StrCat("there is no memory for the ", bytes, " bytes of ", what));
  }

  const int64_t before =
      (kHugePage - static_cast<int64_t>(reinterpret_cast<uintptr_t>(p) % kHugePage)) % kHugePage;
  std::byte* const begin = static_cast<std::byte*>(p) + before;
  const int64_t left = mapped - before, page_end = (bytes + kPage - 1) / kPage * kPage;
  if (before > 0) munmap(p, before);
  if (left > page_end) munmap(begin + page_end, left - page_end);

  // The result is ignored: without huge pages, steps are only slower.
  if (bytes >= kHugePage) madvise(begin, bytes, MADV_HUGEPAGE);

  HugeBuffer buffer;
  buffer.data_ = {begin, Unmap{bytes}};
  buffer.bytes_ = bytes;
  return buffer;
}

void HugeBuffer::Unmap::operator()(std::byte* p) const { munmap(p, bytes); }

}  // namespace sluice
