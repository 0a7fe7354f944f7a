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

float value_at(const KvHead &s, int64_t slot, int64_t d) {
  const int64_t at = slot * s.padded + d;
  if (s.format == KvFormat::kFloat32)
    return static_cast<const float *>(s.values)[at];
  if (s.format == KvFormat::kFloat16)
    return half_to_float(static_cast<const uint16_t *>(s.values)[at]);
  return half_to_float(s.value_scales[slot]) * static_cast<float>(static_cast<const uint8_t *>(s.values)[at] - 128);
}

float key_at(const KvHead &s, int64_t slot, int64_t d) {
  const int64_t at = slot / 16 * 16 * s.key_dim + d * 16 + slot % 16;
  if (s.format == KvFormat::kFloat32)
    return static_cast<const float *>(s.keys)[at];
  if (s.format == KvFormat::kFloat16)
    return half_to_float(static_cast<const uint16_t *>(s.keys)[at]);
  return half_to_float(s.key_scales[slot]) * static_cast<float>(static_cast<const uint8_t *>(s.keys)[at] - 128);
}

// The first number of a slot's key, whose next ones are 16 apart.
uint16_t *half_key(const KvHead &s, int64_t slot) {
  return static_cast<uint16_t *>(s.keys) + slot / 16 * 16 * s.key_dim + slot % 16;
}

} // namespace

KvPool::KvPool(const KvShape &shape, const Kernels &kernels, int32_t file) : shape_(shape), kernels_(kernels) {
  for (const RingShape &ring : shape.rings)
    check(ring.slots > 0 && ring.slots < kMost && ring.slots % 16 == 0 && ring.window < kMost && ring.window > 0,
          "kv: no such ring");
  for (const KvLayer &layer : shape.layers) {
    check(layer.kv_heads > 0 && layer.kv_heads < 65536 && layer.key_dim > 0 && layer.key_dim < 65536 &&
              layer.value_dim > 0 && layer.value_dim < 65536,
          "kv: no such heads");
    check(layer.ring >= 0 && layer.ring < static_cast<int32_t>(shape.rings.size()), "kv: a layer names a ring that is not there");
    offsets_.push_back(bytes_);
    const int64_t each = head_bytes(shape.ring_of(layer).slots, layer);
    check(each < kMostBytes, "kv: larger than any memory");
    bytes_ += each * layer.kv_heads;
    check(bytes_ < kMostBytes, "kv: larger than any memory");
  }
  memory_ = file == kNoFile ? Memory(bytes_, false) : Memory(bytes_, file);
}

KvHead KvPool::head(int32_t layer, int32_t kv_head) const {
  const size_t index = static_cast<size_t>(layer);
  const KvLayer &l = shape_.layers[index];
  const int64_t slots = shape_.ring_of(l).slots, size = number_bytes(l.format);
  uint8_t *keys = memory_.data() + offsets_[index] + kv_head * head_bytes(slots, l);
  uint8_t *values = keys + slots * l.key_dim * size;
  uint16_t *scales = reinterpret_cast<uint16_t *>(values + slots * whole_lines(l.value_dim) * size);
  return {keys,        values,      scales,
          scales + slots, l.key_dim, l.value_dim,
          static_cast<int32_t>(whole_lines(l.key_dim)), static_cast<int32_t>(whole_lines(l.value_dim)), l.format};
}

void KvPool::check_rows(int32_t ring, int64_t source, int64_t target, int64_t count) const {
  check(ring >= 0 && ring < static_cast<int32_t>(shape_.rings.size()), "kv: no such ring");
  const int64_t slots = shape_.rings[static_cast<size_t>(ring)].slots;
  check(count >= 0 && count <= slots && source >= 0 && source <= slots - count && target >= 0 && target <= slots - count,
        "kv: slots that the ring's pool does not have");
}

void KvPool::copy(int32_t ring, int64_t source, int64_t target, int64_t count) {
  check_rows(ring, source, target, count);
  for (int32_t layer = 0; layer < static_cast<int32_t>(shape_.layers.size()); ++layer) {
    const KvLayer &l = shape_.layers[static_cast<size_t>(layer)];
    for (int32_t head = 0; l.ring == ring && head < l.kv_heads; ++head) {
      const KvHead s = this->head(layer, head);
      copy_rows(s, source, s, target, count);
    }
  }
}

void KvPool::rotate(int32_t layer, int64_t source, int64_t target, int64_t count, const std::vector<float> &cos,
                    const std::vector<float> &sin) {
  check(layer >= 0 && layer < static_cast<int32_t>(shape_.layers.size()), "kv: no such layer");
  const KvLayer &l = shape_.layers[static_cast<size_t>(layer)];
  check_rows(l.ring, source, target, count);
  const int64_t half = static_cast<int64_t>(cos.size());
  check(cos.size() == sin.size() && half * 2 <= l.key_dim, "kv: more angles than the head has pairs");
  std::vector<float> key(static_cast<size_t>(l.key_dim));
  for (int32_t head = 0; head < l.kv_heads; ++head) {
    const KvHead s = this->head(layer, head);
    for (int64_t row = 0; row < count; ++row) {
      for (int32_t d = 0; d < l.key_dim; ++d)
        key[static_cast<size_t>(d)] = key_at(s, source + row, d);
      kernels_.rope(key.data(), 1, l.key_dim, half * 2, cos.data(), sin.data());
      if (!kernels_.write_row(s, target + row, key.data(), nullptr))
        throw std::overflow_error("a key of a sink is more than the cache's format holds");
    }
  }
}

const KvLayer &KvPool::checked(int32_t layer, const std::vector<int64_t> &slots) const {
  check(layer >= 0 && layer < static_cast<int32_t>(shape_.layers.size()), "kv: no such layer");
  const KvLayer &l = shape_.layers[static_cast<size_t>(layer)];
  for (int64_t slot : slots)
    check(slot >= 0 && slot < shape_.ring_of(l).slots, "kv: slots that the ring's pool does not have");
  return l;
}

void KvPool::read(int32_t layer, const std::vector<int64_t> &slots, float *keys, float *values) const {
  const KvLayer &l = checked(layer, slots);
  for (int64_t slot : slots)
    for (int32_t head = 0; head < l.kv_heads; ++head) {
      const KvHead s = this->head(layer, head);
      for (int32_t d = 0; d < l.key_dim; ++d)
        *keys++ = key_at(s, slot, d);
      for (int32_t d = 0; d < l.value_dim; ++d)
        *values++ = value_at(s, slot, d);
    }
}

void KvPool::read(int32_t layer, const std::vector<int64_t> &slots, uint16_t *keys, uint16_t *values) const {
  const KvLayer &l = checked(layer, slots);
  check(l.format == KvFormat::kFloat16, "kv: halves of a layer that has none");
  for (int64_t slot : slots)
    for (int32_t head = 0; head < l.kv_heads; ++head, keys += l.key_dim, values += l.value_dim) {
      const KvHead s = this->head(layer, head);
      const uint16_t *line = half_key(s, slot);
      for (int32_t d = 0; d < l.key_dim; ++d)
        keys[d] = line[d * 16];
      std::copy_n(static_cast<const uint16_t *>(s.values) + slot * s.padded, l.value_dim, values);
    }
}

void KvPool::write(int32_t layer, const std::vector<int64_t> &slots, const uint16_t *keys, const uint16_t *values) {
  const KvLayer &l = checked(layer, slots);
  check(l.format == KvFormat::kFloat16, "kv: halves of a layer that has none");
  const auto finite = [](const uint16_t *numbers, int32_t count) {
    return std::none_of(numbers, numbers + count, [](uint16_t half) { return (half & 0x7c00) == 0x7c00; });
  };
  for (int64_t slot : slots)
    for (int32_t head = 0; head < l.kv_heads; ++head, keys += l.key_dim, values += l.value_dim) {
      if (!finite(keys, l.key_dim) || !finite(values, l.value_dim))
        throw std::overflow_error("a key or value is not finite");
      const KvHead s = this->head(layer, head);
      uint16_t *line = half_key(s, slot);
      for (int32_t d = 0; d < l.key_dim; ++d)
        line[d * 16] = keys[d];
      std::copy_n(values, l.value_dim, static_cast<uint16_t *>(s.values) + slot * s.padded);
    }
}

void KvPool::write(int32_t layer, const std::vector<int64_t> &slots, const float *keys, const float *values) {
  const KvLayer &l = checked(layer, slots);
  for (int64_t slot : slots)
    for (int32_t head = 0; head < l.kv_heads; ++head, keys += l.key_dim, values += l.value_dim)
      if (!kernels_.write_row(this->head(layer, head), slot, keys, values))
        throw std::overflow_error("a key or value is more than the cache's format holds");
}

} // namespace dsedge
