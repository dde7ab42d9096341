#include "memory.hpp"

#if defined(_WIN32)
#define NOMINMAX
#include <windows.h>
#else
#include <sys/mman.h>
#endif

#include <algorithm>
#include <new>

#include "traffic.hpp"

namespace paradecode {
namespace {
constexpr std::size_t kChunk = std::size_t{64} << 20;
constexpr std::size_t kSmallPage = 4096;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
// Bytes that are added to the end of every mapping, so that kernels may prefetch and load whole
// vectors there.
constexpr std::size_t kSlack = 8192;

#if defined(_WIN32)
std::uint8_t* map(std::size_t bytes, bool) {
  void* out = VirtualAlloc(nullptr, bytes, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (out == nullptr) throw std::bad_alloc();
  return static_cast<std::uint8_t*>(out);
}

void unmap(std::uint8_t* data, std::size_t) { VirtualFree(data, 0, MEM_RELEASE); }
#else
void unmap(std::uint8_t* data, std::size_t bytes) { munmap(data, bytes); }

std::uint8_t* map(std::size_t bytes, bool huge) {
  // The mapping is one unit too large, and is trimmed so that it starts on a huge page.
  const std::size_t request = bytes + (huge ? kHugePage : 0);
  void* raw = mmap(nullptr, request, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (raw == MAP_FAILED) throw std::bad_alloc();
  auto* start = static_cast<std::uint8_t*>(raw);
  if (!huge) return start;
  const auto address = reinterpret_cast<std::uintptr_t>(raw);
  const std::size_t skip = (kHugePage - address % kHugePage) % kHugePage;
  if (skip != 0) unmap(start, skip);
  std::uint8_t* data = start + skip;
  const std::size_t rest = request - skip - bytes;
  if (rest != 0) unmap(data + bytes, rest);
#ifdef MADV_HUGEPAGE
  madvise(data, bytes, MADV_HUGEPAGE);
#endif
  return data;
}
#endif
}  // namespace

Mapping::Mapping(std::size_t bytes) {
  const std::size_t unit = bytes >= kHugePage ? kHugePage : kSmallPage;
  bytes_ = (bytes + kSlack + unit - 1) / unit * unit;
  data_ = map(bytes_, unit == kHugePage);
  count_bytes(bytes);
}

Mapping::~Mapping() {
  if (data_ != nullptr) unmap(data_, bytes_);
}

void Mapping::take(std::size_t begin, std::size_t end) const {
#ifdef MADV_POPULATE_WRITE
  begin = begin / kSmallPage * kSmallPage;
  madvise(data_ + begin, std::min(end, bytes_) - begin, MADV_POPULATE_WRITE);
#else
  static_cast<void>(begin), static_cast<void>(end);
#endif
}

std::uint8_t* Arena::take(std::size_t bytes) {
  bytes = (bytes + kSmallPage - 1) / kSmallPage * kSmallPage;
  if (chunks_.empty() || used_ + bytes > chunks_.back().bytes() - kSlack) {
    chunks_.emplace_back(std::max(bytes, kChunk));
    used_ = 0;
  }
  std::uint8_t* out = chunks_.back().data() + used_;
  used_ += bytes;
  return out;
}

}  // namespace paradecode
