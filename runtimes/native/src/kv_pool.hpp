// Storage for the keys and values of every sequence, in memory that the system commits as it is touched.
#pragma once

#include "kernels.hpp"
#include "memory.hpp"

#include <vector>

namespace dsedge {

struct RingShape {
  int64_t slots, window, sinks;
};

// The layers' rings and the sizes of a head; a ring has `chunk` rows behind its slots, where a forward puts new rows
// that have no free slot to go to.
struct KvShape {
  int64_t sequences, chunk;
  int32_t kv_heads, dim;
  std::vector<RingShape> rings;
  std::vector<int32_t> layers;   // the ring of each layer
  std::vector<KvFormat> formats; // of each layer

  size_t ring_of(int32_t layer) const { return static_cast<size_t>(layers[static_cast<size_t>(layer)]); }
};

class KvPool {
public:
  // Throws std::invalid_argument for sizes that are none, std::bad_alloc.
  KvPool(const KvShape &shape, const Kernels &kernels);

  int64_t bytes() const { return bytes_; }
  HeadStore head(int64_t sequence, int32_t layer, int32_t kv_head) const;

  // The rest throws std::invalid_argument for a sequence, ring, slot or layer that is not there.
  // Moves new rows from `scratch` on into the slots `targets`; sink keys are kept aside too.
  void store(int64_t sequence, int32_t ring, const std::vector<int64_t> &targets, int64_t scratch);
  void copy_slots(int64_t source, int64_t target, const std::vector<int64_t> &filled);
  // Writes the sink keys of a layer turned by the given cos and sin of each pair.
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
  std::vector<std::vector<float>> sinks_; // [sequence * layers + layer]: [kv_heads][sinks][dim], as they were written
};

} // namespace dsedge
