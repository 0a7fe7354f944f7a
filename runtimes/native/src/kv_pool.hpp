// Pools of slots for keys and values, in address space that the system gives memory to as it is touched. Which slot is
// whose is for the caller to know.
#pragma once

#include "kernels/kernels.hpp"
#include "memory.hpp"
#include "schema.hpp"

#include <vector>

namespace dsedge {

// What a layer keeps, and in which ring's pool.
struct KvLayer {
  int32_t ring, kv_heads, key_dim, value_dim;
  KvFormat format;
};

constexpr int32_t kNoFile = -1;

struct KvShape {
  std::vector<RingShape> rings;
  std::vector<KvLayer> layers;

  const RingShape &ring_of(const KvLayer &layer) const { return rings[static_cast<size_t>(layer.ring)]; }
};

class KvPool {
public:
  // In an empty file, where one is given. Throws std::invalid_argument for sizes that are none, std::bad_alloc.
  KvPool(const KvShape &shape, const Kernels &kernels, int32_t file = kNoFile);

  int64_t bytes() const { return bytes_; }
  // All slots of a kv head.
  KvHead head(int32_t layer, int32_t kv_head) const;

  // Both throw std::invalid_argument for a ring, layer or slot that is not there.
  // Copies `count` rows of all layers of a ring from slot `source` on to slot `target` on; the two may overlap where
  // `target` is lower.
  void copy(int32_t ring, int64_t source, int64_t target, int64_t count);
  // Writes the keys of a layer's rows from `source` on to those from `target` on, rotated by cos and sin of each pair.
  // Throws std::overflow_error for keys that the format cannot hold then.
  void rotate(int32_t layer, int64_t source, int64_t target, int64_t count, const std::vector<float> &cos,
              const std::vector<float> &sin);

  // Keys [slots][kv heads][key_dim] and values [slots][kv heads][value_dim] of some slots of a layer, as floats, or as the
  // halves that a layer of float16 has. What was read is written as it was. Throw std::invalid_argument for a layer or slot
  // that is not there, and for halves of another format; std::overflow_error for numbers that the format cannot hold.
  void read(int32_t layer, const std::vector<int64_t> &slots, float *keys, float *values) const;
  void read(int32_t layer, const std::vector<int64_t> &slots, uint16_t *keys, uint16_t *values) const;
  void write(int32_t layer, const std::vector<int64_t> &slots, const float *keys, const float *values);
  void write(int32_t layer, const std::vector<int64_t> &slots, const uint16_t *keys, const uint16_t *values);

private:
  const KvLayer &checked(int32_t layer, const std::vector<int64_t> &slots) const;
  void check_rows(int32_t ring, int64_t source, int64_t target, int64_t count) const;

  KvShape shape_;
  const Kernels &kernels_;
  int64_t bytes_ = 0;
  std::vector<int64_t> offsets_; // of each layer
  Memory memory_;
};

} // namespace dsedge
