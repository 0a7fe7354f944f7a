// Storage for the keys and values of every sequence, in memory that the system commits as it is touched.
#pragma once

#include "kernels/kernels.hpp"
#include "memory.hpp"
#include "schema.hpp"

#include <vector>

namespace dsedge {

// What a layer keeps, and in which ring.
struct KvLayer {
  int32_t ring, kv_heads, key_dim, value_dim;
  KvFormat format;
};

// A ring has `chunk` rows behind its slots, where a forward puts new rows that have no free slot to go to.
struct KvShape {
  int64_t sequences = 0, chunk = 0;
  std::vector<RingShape> rings;
  std::vector<KvLayer> layers;

  const RingShape &ring_of(const KvLayer &layer) const { return rings[static_cast<size_t>(layer.ring)]; }
};

class KvPool {
public:
  // Throws std::invalid_argument for sizes that are none, std::bad_alloc.
  KvPool(const KvShape &shape, const Kernels &kernels);

  int64_t bytes() const { return bytes_; }
  KvHead head(int64_t sequence, int32_t layer, int32_t kv_head) const;

  // The rest throws std::invalid_argument for a sequence, ring, slot or layer that is not there.
  // Moves new rows from `scratch` on into the slots `targets`; sink keys are kept aside too.
  void store(int64_t sequence, int32_t ring, const std::vector<int64_t> &targets, int64_t scratch);
  void copy_slots(int64_t source, int64_t target, const std::vector<int64_t> &filled);
  // Writes the sink keys of a layer, rotated by the given cos and sin of each pair.
  void rotate_sinks(int64_t sequence, int32_t layer, const std::vector<float> &cos, const std::vector<float> &sin);

private:
  int64_t rows(int32_t ring) const;
  void check_sequence(int64_t sequence) const;
  float *sink_keys(int64_t sequence, int32_t layer, int32_t kv_head);
  void keep_sink(int64_t sequence, int32_t layer, int64_t slot);

  KvShape shape_;
  const Kernels &kernels_;
  int64_t bytes_ = 0, sequence_bytes_ = 0;
  std::vector<int64_t> offsets_; // of each layer within a sequence
  Memory memory_;
  std::vector<std::vector<float>> sinks_; // [sequence * layers + layer]: [kv_heads][sinks][key_dim], as they were written
};

} // namespace dsedge
