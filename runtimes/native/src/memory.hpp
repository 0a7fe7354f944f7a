// Zeroed memory straight from the system, in 2 MiB pages where it gives them, or of a file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>

namespace dsedge {

class Memory {
public:
  Memory() = default;
  // Throws std::bad_alloc. `huge` asks for 2 MiB pages: for memory that is used whole, not for memory of which little is
  // touched, since a page is committed whole.
  Memory(int64_t bytes, bool huge);
  // Of an empty file that is open for writing, which becomes as long as that: what memory has no room for lies there.
  // Throws std::invalid_argument where it is none, and on Windows.
  Memory(int64_t bytes, int32_t file);
  ~Memory();
  Memory(Memory &&other) noexcept { *this = std::move(other); }
  Memory &operator=(Memory &&other) noexcept {
    std::swap(base_, other.base_);
    std::swap(mapped_, other.mapped_);
    std::swap(data_, other.data_);
    return *this;
  }

  uint8_t *data() const { return data_; }

private:
  void *base_ = nullptr;
  size_t mapped_ = 0;
  uint8_t *data_ = nullptr;
};

} // namespace dsedge
