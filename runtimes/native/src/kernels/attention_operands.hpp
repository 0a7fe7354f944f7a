// The operands of attention's products, by the type T of a cached number: float, uint16_t (float16), uint8_t (int8 codes), and
// the pairs of bf16_attention.hpp.
#pragma once

// Keys and values are prefetched so many bytes ahead: hardware prefetchers stop at the end of a page.
constexpr int64_t kKvAhead = 8192;

// A float16 number of the cache that is multiplied as half of a bfloat16 pair, and such a pair: see bf16_attention.hpp.
struct Paired {
  uint16_t half;
};
struct ReadyPair {
  uint16_t first, second;
};
// The type that a cached number is converted to once for all rows of a tile; codes and float32 are read as they are.
template <typename T> struct Ready {
  using Type = T;
};
template <> struct Ready<uint16_t> {
  using Type = float;
};
template <> struct Ready<Paired> {
  using Type = ReadyPair;
};
// Numbers that one product takes (2 for pairs), and numbers in a T.
template <typename T> constexpr int kTogether = std::is_same_v<typename Ready<T>::Type, ReadyPair> ? 2 : 1;
template <typename T> constexpr int kHeld = std::is_same_v<T, ReadyPair> ? 2 : 1;

inline Floats load_wide(const float *p) { return load(p); }
inline Floats load_wide(const uint16_t *p) { return load_half(p); }
inline Floats load_wide(const uint8_t *p) { return to_float(add(widen(p), splat_int(-128))); }
inline void store_wide(float *p, Floats a) { store(p, a); }
inline Floats add_product(const float *x, int64_t at, Floats line, Floats sum) { return fma(splat(x[at]), line, sum); }

// Stores two lines of the weights of a row at index `at`.
template <typename T> inline void store_weights(const T *, float *row, int64_t at, Floats first, Floats second) {
  store(row + at, first);
  store(row + at + 16, second);
}

// Prefetches values, once for each 32 lanes; `lane` is a multiple of 16.
template <typename T> inline void fetch_values(const T *row, int64_t lane) {
  if (lane % 32 == 0)
    __builtin_prefetch((const char *)(row + lane) + kKvAhead);
}

// Calls `work(at, line)` for each row of a piece of values: `at` is its index in the weights, line(lane) loads sixteen of
// its numbers from `lane` on.
template <typename T, typename Work>
inline void each_line(const T *values, int64_t stride, Piece piece, const Work &work) {
  const T *row = values + piece.slot * stride;
  for (int64_t i = 0; i < piece.count; ++i, row += stride)
    work(piece.position % kSpan + i, [&](int64_t lane) __attribute__((always_inline)) {
      fetch_values(row, lane);
      return load_wide(row + lane);
    });
}

#ifdef __AVX512BF16__
#include "kernels/bf16_attention.hpp"
#endif

// Whether each line of 16 slots of the pieces is one line of 16 positions of the span.
inline bool lines_agree(const Piece *pieces, int64_t count) {
  for (int64_t p = 0, line = -1; p < count; ++p) {
    const int64_t first = pieces[p].position % kSpan;
    if ((first - pieces[p].slot) % 16 || first / 16 <= line)
      return false;
    line = (first + pieces[p].count - 1) / 16;
  }
  return true;
}

// Keys [position / 16][dim][16] and values [position][padded] of a piece, by their position in the span.
template <typename T, typename To> inline void convert(const KvHead &kv, const Piece &piece, To *keys, To *values) {
  const int64_t first = piece.position % kSpan, lines = (first % 16 + piece.count + 15) / 16, padded = kv.padded;
  const T *from = (const T *)kv.keys + piece.slot / 16 * 16 * kv.key_dim;
  To *to = keys + first / 16 * 16 * kv.key_dim / kHeld<To>;
  for (int64_t i = 0; i < lines * 16 * kv.key_dim; i += 16 * kTogether<T>) {
    __builtin_prefetch((const char *)(from + i) + kKvAhead);
    store_wide(to + i / kHeld<To>, load_wide(from + i));
  }
  each_line((const T *)kv.values, padded, piece, [&](int64_t at, const auto &line) __attribute__((always_inline)) {
    for (int64_t lane = 0; lane < padded; lane += 16)
      store_wide(values + at * padded + lane, line(lane));
  });
}
