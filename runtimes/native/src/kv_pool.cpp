#include "kv_pool.hpp"

#include "simd/half.hpp"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace dsedge {

namespace {

constexpr int64_t kMost = int64_t{1} << 32, kMostBytes = int64_t{1} << 46;

void check(bool fine, const char *message) {
  if (!fine)
    throw std::invalid_argument(message);
}

int64_t number_bytes(KvFormat format) { return format == KvFormat::kFloat32 ? 4 : format == KvFormat::kFloat16 ? 2 : 1; }

int64_t head_bytes(int64_t rows, const KvLayer &layer) {
  const int64_t bytes = rows * (layer.key_dim + whole_lines(layer.value_dim)) * number_bytes(layer.format);
  const int64_t scales = layer.format == KvFormat::kInt8 ? rows * 4 : 0;
  return (bytes + scales + 63) / 64 * 64;
}

// Copies rows from slot `source` on, which may overlap with those from `target` on where that is lower: values and
// scales lie row by row, keys in lines of 16.
void copy_rows(const KvHead &from, int64_t source, const KvHead &to, int64_t target, int64_t count) {
  const int64_t size = number_bytes(from.format), row = from.padded * size;
  const auto move = [](void *out, int64_t at, const void *in, int64_t begin, int64_t bytes) {
    std::memmove(static_cast<uint8_t *>(out) + at, static_cast<const uint8_t *>(in) + begin, static_cast<size_t>(bytes));
  };
  move(to.values, target * row, from.values, source * row, count * row);
  if (from.format == KvFormat::kInt8) {
    move(to.key_scales, target * 2, from.key_scales, source * 2, count * 2);
    move(to.value_scales, target * 2, from.value_scales, source * 2, count * 2);
  }
  for (int64_t done = 0; done < count;) {
    const int64_t first = source + done, last = target + done;
    const int64_t run = std::min({16 - first % 16, 16 - last % 16, count - done});
    const int64_t begin = (first / 16 * 16 * from.key_dim + first % 16) * size;
    const int64_t at = (last / 16 * 16 * from.key_dim + last % 16) * size;
    if (run == 16)
      move(to.keys, at, from.keys, begin, 16 * from.key_dim * size);
    else
      for (int64_t d = 0; d < from.key_dim; ++d)
        move(to.keys, at + d * 16 * size, from.keys, begin + d * 16 * size, run * size);
    done += run;
  }
}

float key_at(const KvHead &s, int64_t slot, int64_t d) {
  const int64_t at = slot / 16 * 16 * s.key_dim + d * 16 + slot % 16;
  if (s.format == KvFormat::kFloat32)
    return static_cast<const float *>(s.keys)[at];
  if (s.format == KvFormat::kFloat16)
    return half_to_float(static_cast<const uint16_t *>(s.keys)[at]);
  return half_to_float(s.key_scales[slot]) * static_cast<float>(static_cast<const uint8_t *>(s.keys)[at] - 128);
}

} // namespace

KvPool::KvPool(const KvShape &shape, const Kernels &kernels) : shape_(shape), kernels_(kernels) {
  check(shape.sequences > 0 && shape.sequences < 65536 && shape.chunk > 0 && shape.chunk < kMost,
        "kv: no such number of sequences or rows");
  for (const RingShape &ring : shape.rings)
    check(ring.slots > 0 && ring.slots < kMost && ring.window < kMost && ring.window > 0 && ring.sinks >= 0 && ring.sinks < ring.slots,
          "kv: no such ring");
  for (const KvLayer &layer : shape.layers) {
    check(layer.kv_heads > 0 && layer.kv_heads < 65536 && layer.key_dim > 0 && layer.key_dim < 65536 &&
              layer.value_dim > 0 && layer.value_dim < 65536,
          "kv: no such heads");
    check(layer.ring >= 0 && layer.ring < static_cast<int32_t>(shape.rings.size()), "kv: a layer names a ring that is not there");
    offsets_.push_back(sequence_bytes_);
    const int64_t each = head_bytes(rows(layer.ring), layer);
    check(each < kMostBytes, "kv: larger than any memory");
    sequence_bytes_ += each * layer.kv_heads;
    check(sequence_bytes_ < kMostBytes, "kv: larger than any memory");
  }
  bytes_ = sequence_bytes_ * shape.sequences;
  check(bytes_ < kMostBytes, "kv: larger than any memory");
  memory_ = Memory(bytes_, false);
  sinks_.resize(static_cast<size_t>(shape.sequences) * shape.layers.size());
}

int64_t KvPool::rows(int32_t ring) const {
  return whole_lines(shape_.rings[static_cast<size_t>(ring)].slots + shape_.chunk);
}

KvHead KvPool::head(int64_t sequence, int32_t layer, int32_t kv_head) const {
  const size_t index = static_cast<size_t>(layer);
  const KvLayer &l = shape_.layers[index];
  const int64_t count = rows(l.ring), size = number_bytes(l.format);
  uint8_t *keys = memory_.data() + sequence * sequence_bytes_ + offsets_[index] + kv_head * head_bytes(count, l);
  uint8_t *values = keys + count * l.key_dim * size;
  uint16_t *scales = reinterpret_cast<uint16_t *>(values + count * whole_lines(l.value_dim) * size);
  return {keys,        values,      scales,
          scales + count, l.key_dim, l.value_dim,
          static_cast<int32_t>(whole_lines(l.key_dim)), static_cast<int32_t>(whole_lines(l.value_dim)), l.format};
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
    const KvLayer &l = shape_.layers[static_cast<size_t>(layer)];
    if (l.ring != ring)
      continue;
    for (int64_t done = 0, run; done < count; done += run) {
      const int64_t target = targets[static_cast<size_t>(done)];
      for (run = 1; done + run < count && targets[static_cast<size_t>(done + run)] == target + run;)
        ++run;
      for (int32_t head = 0; target != scratch + done && head < l.kv_heads; ++head) {
        const KvHead s = this->head(sequence, layer, head);
        copy_rows(s, scratch + done, s, target, run);
      }
    }
    for (int64_t target : targets)
      if (target < shape.sinks)
        keep_sink(sequence, layer, target);
  }
}

float *KvPool::sink_keys(int64_t sequence, int32_t layer, int32_t kv_head) {
  const size_t layers = shape_.layers.size(), index = static_cast<size_t>(layer);
  const KvLayer &l = shape_.layers[index];
  const int64_t each = shape_.ring_of(l).sinks * l.key_dim;
  std::vector<float> &kept = sinks_[static_cast<size_t>(sequence) * layers + index];
  kept.resize(static_cast<size_t>(each * l.kv_heads));
  return kept.data() + each * kv_head;
}

void KvPool::keep_sink(int64_t sequence, int32_t layer, int64_t slot) {
  const KvLayer &l = shape_.layers[static_cast<size_t>(layer)];
  for (int32_t head = 0; head < l.kv_heads; ++head) {
    const KvHead s = this->head(sequence, layer, head);
    float *kept = sink_keys(sequence, layer, head) + slot * l.key_dim;
    for (int32_t d = 0; d < l.key_dim; ++d)
      kept[d] = key_at(s, slot, d);
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
    const KvLayer &l = shape_.layers[index];
    for (int32_t head = 0; head < l.kv_heads; ++head) {
      const KvHead from = this->head(source, layer, head), to = this->head(target, layer, head);
      copy_rows(from, 0, to, 0, filled[static_cast<size_t>(l.ring)]);
    }
    sinks_[static_cast<size_t>(target) * shape_.layers.size() + index] =
        sinks_[static_cast<size_t>(source) * shape_.layers.size() + index];
  }
}

void KvPool::rotate_sinks(int64_t sequence, int32_t layer, const std::vector<float> &cos,
                          const std::vector<float> &sin) {
  check_sequence(sequence);
  check(layer >= 0 && layer < static_cast<int32_t>(shape_.layers.size()), "kv: no such layer");
  const KvLayer &l = shape_.layers[static_cast<size_t>(layer)];
  const int64_t half = static_cast<int64_t>(cos.size());
  check(cos.size() == sin.size() && half * 2 <= l.key_dim, "kv: more angles than the head has pairs");
  std::vector<float> rotated(static_cast<size_t>(l.key_dim));
  for (int32_t head = 0; head < l.kv_heads; ++head) {
    const KvHead s = this->head(sequence, layer, head);
    for (int64_t slot = 0; slot < shape_.ring_of(l).sinks; ++slot) {
      const float *key = sink_keys(sequence, layer, head) + slot * l.key_dim;
      std::memcpy(rotated.data(), key, rotated.size() * 4);
      kernels_.rope(rotated.data(), 1, l.key_dim, half * 2, cos.data(), sin.data());
      if (!kernels_.write_row(s, slot, rotated.data(), nullptr))
        throw std::overflow_error("a key of a sink is more than the cache's format holds");
    }
  }
}

} // namespace dsedge
