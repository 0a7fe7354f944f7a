#include "kv_pool.hpp"

#include "half.hpp"

#include <cstring>
#include <stdexcept>

namespace dsedge {

namespace {

constexpr int64_t kMost = int64_t{1} << 32, kMostBytes = int64_t{1} << 46;

int64_t round_up(int64_t n) { return (n + 15) / 16 * 16; }

void check(bool fine, const char *message) {
  if (!fine)
    throw std::invalid_argument(message);
}

int64_t head_bytes(int64_t rows, int32_t dim, bool wide) {
  const int64_t bytes = rows * (dim + round_up(dim)) * (wide ? 4 : 2);
  return (bytes + 63) / 64 * 64;
}

} // namespace

KvPool::KvPool(const KvShape &shape, const Kernels &kernels) : shape_(shape), kernels_(kernels) {
  check(shape.sequences > 0 && shape.sequences < 65536 && shape.chunk > 0 && shape.chunk < kMost,
        "kv: no such number of sequences or rows");
  check(shape.kv_heads > 0 && shape.kv_heads < 65536 && shape.dim > 0 && shape.dim < 65536, "kv: no such heads");
  for (const RingShape &ring : shape.rings)
    check(ring.slots > 0 && ring.slots < kMost && ring.window < kMost && ring.window > 0 && ring.sinks >= 0 && ring.sinks < ring.slots,
          "kv: no such ring");
  for (int32_t ring : shape.layers) {
    check(ring >= 0 && ring < static_cast<int32_t>(shape.rings.size()), "kv: a layer names a ring that is not there");
    offsets_.push_back(sequence_bytes_);
    const int64_t each = head_bytes(rows(ring), shape.dim, shape.wide);
    check(each < kMostBytes, "kv: larger than any memory");
    sequence_bytes_ += each * shape.kv_heads;
    check(sequence_bytes_ < kMostBytes, "kv: larger than any memory");
  }
  bytes_ = sequence_bytes_ * shape.sequences;
  check(bytes_ < kMostBytes, "kv: larger than any memory");
  memory_ = Memory(bytes_, false);
  sinks_.resize(static_cast<size_t>(shape.sequences) * shape.layers.size());
}

int64_t KvPool::rows(int32_t ring) const {
  return round_up(shape_.rings[static_cast<size_t>(ring)].slots + shape_.chunk);
}

HeadStore KvPool::head(int64_t sequence, int32_t layer, int32_t kv_head) const {
  const size_t index = static_cast<size_t>(layer);
  const int64_t count = rows(shape_.layers[index]), size = shape_.wide ? 4 : 2;
  uint8_t *base = memory_.data() + sequence * sequence_bytes_ + offsets_[index] +
                  kv_head * head_bytes(count, shape_.dim, shape_.wide);
  return {base, base + count * shape_.dim * size, shape_.dim, static_cast<int32_t>(round_up(shape_.dim)), shape_.wide};
}

void KvPool::check_sequence(int64_t sequence) const {
  check(sequence >= 0 && sequence < shape_.sequences, "kv: no such sequence");
}

void KvPool::store(int64_t sequence, int32_t ring, const std::vector<int64_t> &targets, int64_t scratch) {
  check_sequence(sequence);
  check(ring >= 0 && ring < static_cast<int32_t>(shape_.rings.size()), "kv: no such ring");
  const RingShape &shape = shape_.rings[static_cast<size_t>(ring)];
  const int64_t count = static_cast<int64_t>(targets.size());
  check(scratch >= 0 && scratch <= shape.slots && count <= shape_.chunk, "kv: more new rows than there is room for");
  for (int64_t target : targets)
    check(target >= 0 && target < shape.slots, "kv: no such slot");
  for (int32_t layer = 0; layer < static_cast<int32_t>(shape_.layers.size()); ++layer) {
    if (shape_.layers[static_cast<size_t>(layer)] != ring)
      continue;
    for (int64_t i = 0; i < count; ++i) {
      const int64_t target = targets[static_cast<size_t>(i)];
      for (int32_t head = 0; target != scratch + i && head < shape_.kv_heads; ++head) {
        const HeadStore s = this->head(sequence, layer, head);
        kernels_.copy_row(s, scratch + i, s, target);
      }
      if (target < shape.sinks)
        keep_sink(sequence, layer, target);
    }
  }
}

float *KvPool::sink_keys(int64_t sequence, int32_t layer, int32_t kv_head) {
  const size_t layers = shape_.layers.size(), index = static_cast<size_t>(layer);
  const int64_t each = shape_.rings[static_cast<size_t>(shape_.layers[index])].sinks * shape_.dim;
  std::vector<float> &kept = sinks_[static_cast<size_t>(sequence) * layers + index];
  kept.resize(static_cast<size_t>(each * shape_.kv_heads));
  return kept.data() + each * kv_head;
}

void KvPool::keep_sink(int64_t sequence, int32_t layer, int64_t slot) {
  for (int32_t head = 0; head < shape_.kv_heads; ++head) {
    const HeadStore s = this->head(sequence, layer, head);
    float *kept = sink_keys(sequence, layer, head) + slot * shape_.dim;
    for (int32_t d = 0; d < shape_.dim; ++d) {
      const int64_t at = slot / 16 * 16 * shape_.dim + d * 16 + slot % 16;
      kept[d] = s.wide ? static_cast<float *>(s.keys)[at] : half_to_float(static_cast<uint16_t *>(s.keys)[at]);
    }
  }
}

void KvPool::copy_slots(int64_t source, int64_t target, const std::vector<int64_t> &filled) {
  check_sequence(source);
  check_sequence(target);
  check(filled.size() == shape_.rings.size(), "kv: a number of slots for each ring is needed");
  for (size_t ring = 0; ring < filled.size(); ++ring)
    check(filled[ring] >= 0 && filled[ring] <= shape_.rings[ring].slots, "kv: more slots than the ring has");
  for (int32_t layer = 0; layer < static_cast<int32_t>(shape_.layers.size()); ++layer) {
    const size_t index = static_cast<size_t>(layer);
    for (int32_t head = 0; head < shape_.kv_heads; ++head) {
      const HeadStore from = this->head(source, layer, head), to = this->head(target, layer, head);
      for (int64_t slot = 0; slot < filled[static_cast<size_t>(shape_.layers[index])]; ++slot)
        kernels_.copy_row(from, slot, to, slot);
    }
    sinks_[static_cast<size_t>(target) * shape_.layers.size() + index] =
        sinks_[static_cast<size_t>(source) * shape_.layers.size() + index];
  }
}

void KvPool::rotate_sinks(int64_t sequence, int32_t layer, const std::vector<float> &cos,
                          const std::vector<float> &sin) {
  check_sequence(sequence);
  check(layer >= 0 && layer < static_cast<int32_t>(shape_.layers.size()), "kv: no such layer");
  const int64_t half = static_cast<int64_t>(cos.size());
  check(cos.size() == sin.size() && half * 2 <= shape_.dim, "kv: more angles than the head has pairs");
  const int64_t sinks = shape_.rings[static_cast<size_t>(shape_.layers[static_cast<size_t>(layer)])].sinks;
  std::vector<float> turned(static_cast<size_t>(shape_.dim)), value(static_cast<size_t>(round_up(shape_.dim)));
  for (int32_t head = 0; head < shape_.kv_heads; ++head) {
    const HeadStore s = this->head(sequence, layer, head);
    for (int64_t slot = 0; slot < sinks; ++slot) {
      const float *key = sink_keys(sequence, layer, head) + slot * shape_.dim;
      std::memcpy(turned.data(), key, turned.size() * 4);
      kernels_.rope(turned.data(), 1, shape_.dim, half * 2, cos.data(), sin.data());
      for (int32_t d = 0; d < shape_.dim; ++d) {
        const int64_t at = slot * s.padded + d;
        value[static_cast<size_t>(d)] =
            s.wide ? static_cast<float *>(s.values)[at] : half_to_float(static_cast<uint16_t *>(s.values)[at]);
      }
      kernels_.write_row(s, slot, turned.data(), value.data());
    }
  }
}

} // namespace dsedge
