// Writes keys and values to the slots of a ring, as numbers or as codes with a scale.
#pragma once

// keep_number returns whether the stored number is finite. Others are stored as NaN, since an infinity could become a weight
// of 0, or the soft-cap, and not be noticed.
inline bool is_finite(uint16_t half) { return (half & 0x7c00) != 0x7c00; }
inline bool keep_number(float *p, float x) {
  *p = x;
  return x - x == 0;
}
inline bool keep_number(uint16_t *p, float x) {
  const uint16_t half = half_of(x);
  *p = is_finite(half) ? half : 0x7e00;
  return is_finite(half);
}

// Writes numbers to the slot at `out`, `stride` apart. Returns whether all of them are finite as stored.
template <typename T> inline bool write_numbers(const float *x, int64_t count, T *out, int64_t stride) {
  bool finite = true;
  for (int64_t d = 0; d < count; ++d)
    finite &= keep_number(out + d * stride, x[d]);
  return finite;
}

// Writes numbers as codes and returns their scale: NaN where float16 cannot hold it or a number is not finite.
inline uint16_t write_codes(const float *x, int64_t count, uint8_t *out, int64_t stride) {
  Floats top = splat(0), total = splat(0);
  for (int64_t d = 0; d < count; d += 16) {
    const Floats a = abs(load_some(x + d, count - d));
    top = max(a, top);
    total = add(a, total); // a NaN reaches the sum; `max` may drop it
  }
  uint16_t half;
  keep_number(&half, maximum(top) / 127);
  if (!(sum(total) < __builtin_inff()))
    half = 0x7e00;
  const float scale = half_scalar(&half), inverse = scale > 0 ? 1 / scale : 0; // of NaN: 0
  for (int64_t d = 0; d < count; d += 16) {
    const Floats a = inverse > 0 ? mul(load_some(x + d, count - d), splat(inverse)) : splat(0);
    const Ints rounded = round(max(splat(-127), sub(splat(0), max(splat(-127), sub(splat(0), a)))));
    int32_t codes[16];
    __builtin_memcpy(codes, &rounded, sizeof codes);
    for (int64_t i = 0; i < 16 && d + i < count; ++i)
      out[(d + i) * stride] = (uint8_t)(codes[i] + 128);
  }
  return half;
}

template <typename T> inline bool write_head(const KvHead &kv, int64_t slot, const float *key, const float *value) {
  T *keys = (T *)kv.keys + slot / 16 * 16 * kv.key_dim + slot % 16, *values = (T *)kv.values + slot * kv.padded;
  if constexpr (sizeof(T) == 1) {
    kv.key_scales[slot] = write_codes(key, kv.key_dim, keys, 16);
    if (value)
      kv.value_scales[slot] = write_codes(value, kv.value_dim, values, 1);
    return is_finite(kv.key_scales[slot]) && (!value || is_finite(kv.value_scales[slot]));
  } else {
    const bool fine = write_numbers(key, kv.key_dim, keys, 16);
    return (!value || write_numbers(value, kv.value_dim, values, 1)) && fine;
  }
}

bool write_row(const KvHead &kv, int64_t slot, const float *key, const float *value) {
  if (kv.format == KvFormat::kFloat32)
    return write_head<float>(kv, slot, key, value);
  if (kv.format == KvFormat::kFloat16)
    return write_head<uint16_t>(kv, slot, key, value);
  return write_head<uint8_t>(kv, slot, key, value);
}
