#include "activations.hpp"

#include "ops/op.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>

namespace dsedge {

// Hands out aligned ranges of some memory; without memory it only counts how much is needed.
class Activations::Carver {
public:
  explicit Carver(uint8_t *base) : base_(base) {}
  template <typename T> T *take(int64_t count) {
    uint8_t *at = base_ ? base_ + used_ : nullptr;
    used_ += (count * static_cast<int64_t>(sizeof(T)) + 127) / 128 * 128;
    if (used_ < 0 || used_ > int64_t{1} << 46)
      throw std::invalid_argument("program: activations larger than any memory");
    return reinterpret_cast<T *>(at);
  }
  QuantRows take_rows(int64_t rows, int64_t blocks) {
    const int64_t count = rows * blocks;
    return {take<int8_t>(count * kBlock), take<int8_t>(count * kBlock), take<Block>(count), take<uint8_t>(count), blocks};
  }
  int64_t used() const { return used_; }

private:
  uint8_t *base_;
  int64_t used_ = 0;
};

Activations::Activations(const Program &program, int32_t threads) : program_(program), threads_(threads) {
  views_.floats.resize(program.buffers.size());
  for (const Instruction &instruction : program.instructions)
    if (instruction.op().reserve)
      instruction.op().reserve(program, instruction, room_);
}

void Activations::reserve(int64_t rows, int64_t wanted) {
  if (rows <= rows_ && wanted <= wanted_)
    return;
  rows = std::max(rows, rows_);
  wanted = std::max(wanted, wanted_);
  Carver count(nullptr);
  carve(count, rows, wanted);
  Memory memory(count.used(), count.used() > int64_t{8} << 20);
  Carver carver(memory.data());
  views_ = carve(carver, rows, wanted);
  memory_ = std::move(memory); // nothing above has changed anything if it threw
  rows_ = rows;
  wanted_ = wanted;
}

Activations::Views Activations::carve(Carver &carver, int64_t rows, int64_t wanted) const {
  Views views;
  views.floats.resize(program_.buffers.size());
  views.codes.resize(program_.buffers.size());
  views.scratch.resize(static_cast<size_t>(threads_));
  int64_t widest = 0, blocks = 0, flags = 0;
  for (size_t i = 0; i < program_.buffers.size(); ++i) {
    const Buffer &buffer = program_.buffers[i];
    const int64_t count = buffer.wanted ? wanted : rows;
    if (buffer.codes) {
      const int64_t each = padded_codes(buffer.width) / kBlock;
      views.codes[i] = carver.take_rows(count, each);
      blocks = std::max(blocks, each);
      flags = std::max(flags, tiles_of(count) * each);
    } else {
      widest = std::max(widest, buffer.width);
      if (static_cast<int32_t>(i) != kLogits)
        views.floats[i] = carver.take<float>(count * buffer.width);
    }
  }
  if (flags > std::numeric_limits<int32_t>::max())
    throw std::invalid_argument("program: more quantized blocks than can be counted");
  for (Scratch &s : views.scratch) {
    s.panel = carver.take<uint8_t>(room_.panel_bytes);
    s.results = carver.take<float>(std::max(rows, wanted) * kPanel);
    s.others = carver.take<float>(std::max(rows, wanted) * kPanel);
    s.term = carver.take<float>(std::max(rows, wanted) * kPanel);
    s.queries = carver.take<float>(room_.tile_rows * room_.query_stride);
    s.scores = carver.take<float>(kRowsAtOnce * kSpan);
    s.converted = carver.take<float>(kSpan * (room_.query_stride + room_.padded));
    s.local = carver.take<float>(2 * room_.tile_rows * room_.padded);
    s.sums = carver.take<float>(4 * room_.tile_rows);
    s.positions = carver.take<int64_t>(room_.tile_rows);
    s.own_row = carver.take<float>(widest);
    s.own_codes = carver.take_rows(1, blocks);
    s.flagged = carver.take<uint32_t>(flags);
  }
  return views;
}

void find_flagged(const QuantRows &x, int64_t rows, uint32_t *found) {
  const uint8_t *flag = x.flag;
  for (int64_t row = 0; row < rows; ++row) {
    if (row % kTile == 0)
      std::fill_n(found + row / kTile * x.blocks, x.blocks, 0u);
    uint32_t *tile = found + row / kTile * x.blocks;
    for (int64_t block = 0; block < x.blocks; block += 4, flag += 4) {
      uint32_t four; // flags are tested by fours, since few are set; there are a multiple of four
      std::memcpy(&four, flag, 4);
      for (int i = 0; four && i < 4; ++i)
        tile[block + i] |= static_cast<uint32_t>(flag[i]) << row % kTile;
    }
  }
}

} // namespace dsedge
