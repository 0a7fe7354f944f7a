#include "memory.hpp"

#include <new>
#include <stdexcept>

#ifdef _WIN32
#include <windows.h>
#else
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace dsedge {

namespace {
constexpr size_t kHuge = size_t{2} << 20;
}

#ifdef _WIN32

Memory::Memory(int64_t bytes, bool) : mapped_(static_cast<size_t>(bytes)) {
  base_ = VirtualAlloc(nullptr, mapped_ ? mapped_ : 1, MEM_RESERVE | MEM_COMMIT, PAGE_READWRITE);
  if (!base_)
    throw std::bad_alloc();
  data_ = static_cast<uint8_t *>(base_);
}

Memory::Memory(int64_t, int32_t) { throw std::invalid_argument("memory: of a file, which this system has not"); }

Memory::~Memory() {
  if (base_)
    VirtualFree(base_, 0, MEM_RELEASE);
}

#else

Memory::Memory(int64_t bytes, bool huge) : mapped_(static_cast<size_t>(bytes) + kHuge) {
  base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base_ == MAP_FAILED) {
    base_ = nullptr;
    throw std::bad_alloc();
  }
  data_ = reinterpret_cast<uint8_t *>((reinterpret_cast<uintptr_t>(base_) + kHuge - 1) / kHuge * kHuge);
#ifdef MADV_HUGEPAGE
  if (huge) // only advice: where it is refused, ordinary pages serve
    (void)madvise(data_, static_cast<size_t>(bytes), MADV_HUGEPAGE);
#else
  (void)huge;
#endif
}

Memory::Memory(int64_t bytes, int32_t file) : mapped_(static_cast<size_t>(bytes)) {
  if (ftruncate(file, bytes) != 0)
    throw std::invalid_argument("memory: a file that cannot be so long");
  base_ = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (base_ == MAP_FAILED) {
    base_ = nullptr;
    throw std::bad_alloc();
  }
  data_ = static_cast<uint8_t *>(base_);
}

Memory::~Memory() {
  if (base_)
    munmap(base_, mapped_);
}

#endif

} // namespace dsedge
