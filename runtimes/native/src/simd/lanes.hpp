// Sixteen lanes of floats or integers, whatever the width of the processor's registers. Included inside the anonymous
// namespace of one kernel set, after the file of its instruction set: nothing here may be shared between sets.
// Sums are written with `fma` or plain operators; contraction is off, so that every instance of a kernel rounds alike.
#pragma once

constexpr int kNatives = 64 / kNative; // registers that hold sixteen lanes
constexpr int kEach = kNative / 4;     // lanes of a register

struct Floats {
  NativeFloat v[kNatives];
};
struct Ints {
  NativeInt v[kNatives];
};
struct Bytes {
  NativeByte v[kNatives];
};
typedef uint16_t NativeShort __attribute__((vector_size(kNative)));

// Calls `work` for each register i of a value. There is no loop, since compilers keep an array in registers only where
// every index is a constant.
template <typename Work> __attribute__((always_inline)) inline void each(const Work &work) {
  work(0);
  if constexpr (kNatives > 1)
    work(1);
  if constexpr (kNatives > 2) {
    work(2);
    work(3);
  }
}
#define EACH(...) each([&](int i) __attribute__((always_inline)) { __VA_ARGS__; })

inline Floats splat(float x) {
  Floats r;
  EACH(r.v[i] = x - NativeFloat{}); // adding 0 would cost an instruction, since it turns -0 into 0
  return r;
}
inline Ints splat_int(int32_t x) {
  Ints r;
  EACH(r.v[i] = NativeInt{} + x);
  return r;
}
inline Floats load(const float *p) {
  Floats r;
  EACH(__builtin_memcpy(&r.v[i], p + i * kEach, kNative));
  return r;
}
inline void store(float *p, Floats a) { EACH(__builtin_memcpy(p + i * kEach, &a.v[i], kNative)); }
inline Floats load_some(const float *p, int64_t count) { // lanes from `count` on are 0
  if (count >= 16)
    return load(p);
  Floats r = splat(0);
  __builtin_memcpy(&r, p, (size_t)count * 4);
  return r;
}
inline void store_some(float *p, Floats a, int64_t count) {
  if (count >= 16)
    store(p, a);
  else
    __builtin_memcpy(p, &a, (size_t)count * 4);
}
inline Floats load_half(const uint16_t *p) {
  Floats r;
  EACH(r.v[i] = native_half(p + i * kEach));
  return r;
}
inline void store_half(uint16_t *p, Floats a) { EACH(native_store_half(p + i * kEach, a.v[i])); }
inline Bytes load_bytes(const uint8_t *p) {
  Bytes r;
  EACH(__builtin_memcpy(&r.v[i], p + i * kNative, kNative));
  return r;
}
inline void store_bytes(uint8_t *p, Bytes a) { EACH(__builtin_memcpy(p + i * kNative, &a.v[i], kNative)); }

inline Floats add(Floats a, Floats b) {
  EACH(a.v[i] += b.v[i]);
  return a;
}
inline Floats sub(Floats a, Floats b) {
  EACH(a.v[i] -= b.v[i]);
  return a;
}
inline Floats mul(Floats a, Floats b) {
  EACH(a.v[i] *= b.v[i]);
  return a;
}
inline Floats div(Floats a, Floats b) {
  EACH(a.v[i] /= b.v[i]);
  return a;
}
inline Floats fma(Floats a, Floats b, Floats c) {
  EACH(c.v[i] = native_fma(a.v[i], b.v[i], c.v[i]));
  return c;
}
inline Floats max(Floats a, Floats b) {
  EACH(a.v[i] = native_max(a.v[i], b.v[i]));
  return a;
}
inline Floats where_finite(Floats score, Floats x) { // x, but the score where that is an infinity or NaN
  EACH(x.v[i] = score.v[i] - score.v[i] == 0 ? x.v[i] : score.v[i]);
  return x;
}
inline Floats where_number(Floats a, Floats x, Floats y) { // y where a is NaN, else x
  EACH(x.v[i] = a.v[i] == a.v[i] ? x.v[i] : y.v[i]);
  return x;
}
inline Floats where_larger(Floats a, Floats b, Floats x, Floats y) { // x where a > b, else y
  EACH(y.v[i] = a.v[i] > b.v[i] ? x.v[i] : y.v[i]);
  return y;
}
inline Floats abs(Floats a) {
  EACH(a.v[i] = (NativeFloat)((NativeInt)a.v[i] & 0x7fffffff));
  return a;
}
inline Ints round(Floats a) {
  Ints r;
  EACH(r.v[i] = native_round(a.v[i]));
  return r;
}
inline Floats to_float(Ints a) {
  Floats r;
  EACH(r.v[i] = native_float(a.v[i]));
  return r;
}
inline Ints add(Ints a, Ints b) {
  EACH(a.v[i] += b.v[i]);
  return a;
}
inline Ints mul(Ints a, Ints b) {
  EACH(a.v[i] *= b.v[i]);
  return a;
}
// A number of up to 15 bits as 128 times its upper part, rounded, and its lower part, which is -64 … 63.
inline Ints upper_part(Ints a) {
  EACH(a.v[i] = (a.v[i] + 64) >> 7);
  return a;
}
inline Ints lower_part(Ints a, Ints upper) {
  EACH(a.v[i] -= upper.v[i] << 7);
  return a;
}
inline void store_codes(int8_t *p, Ints a) { // sixteen bytes
  typedef int8_t Codes __attribute__((vector_size(kEach)));
  each([&](int i) __attribute__((always_inline)) {
    const Codes codes = __builtin_convertvector(a.v[i], Codes);
    __builtin_memcpy(p + i * kEach, &codes, kEach);
  });
}
// (lane >> shift) & mask, of each lane of 32 bits.
inline Ints bits_of(Bytes a, int shift, int32_t mask) {
  Ints r;
  EACH(r.v[i] = (NativeInt)a.v[i] >> shift & mask);
  return r;
}
inline Ints widen(const uint8_t *p) { // sixteen bytes
  Ints r;
  EACH(r.v[i] = native_widen(p + i * kEach));
  return r;
}
inline Ints times_128(Ints a) {
  EACH(a.v[i] <<= 7);
  return a;
}
// Adds products of codes with the activations of `quad`. Where kShortSums, sums are 16-bit halves of lanes until widened.
template <int kBits> inline Ints dot(Ints sum, Bytes codes, int32_t quad) {
  EACH(sum.v[i] = native_dot<kBits>(sum.v[i], codes.v[i], quad));
  return sum;
}
template <typename Sums> inline Sums widen_sums(Sums a) {
  EACH(a.v[i] = native_widen_sums(a.v[i]));
  return a;
}
inline Bytes low_nibbles(Bytes a) {
  EACH(a.v[i] = native_low(a.v[i]));
  return a;
}
inline Bytes high_nibbles(Bytes a) {
  EACH(a.v[i] = native_high(a.v[i]));
  return a;
}
// The bytes of even or odd index, each in 16 bits.
inline Bytes even_bytes(Bytes a) {
  EACH(a.v[i] = (NativeByte)((NativeShort)a.v[i] & 0xff));
  return a;
}
inline Bytes odd_bytes(Bytes a) {
  EACH(a.v[i] = (NativeByte)((NativeShort)a.v[i] >> 8));
  return a;
}

// Reduces the lanes to one, always in the same order: the lower half is joined with the upper until one lane is left.
typedef float Four __attribute__((vector_size(16)));
template <typename Join> inline float across(Floats a, const Join &join) {
  Four quarters[4];
  __builtin_memcpy(quarters, &a, 64);
  const Four four = join(join(quarters[0], quarters[2]), join(quarters[1], quarters[3]));
  const Four two = join(four, Four{four[2], four[3]});
  return join(two, Four{two[1]})[0];
}
struct Sum {
  template <typename V> V operator()(V x, V y) const { return x + y; }
};
struct Larger { // a NaN may be dropped; callers find it by a sum
  template <typename V> V operator()(V x, V y) const { return x > y ? x : y; }
};
inline float sum(Floats a) { return across(a, Sum{}); }
inline float maximum(Floats a) { return across(a, Larger{}); }
// Lane i of the result is a[i] reduced, for i below `count`; other lanes are unspecified.
template <typename Join> inline Floats across(const Floats (&a)[16], [[maybe_unused]] int64_t count, const Join &join) {
  if constexpr (kNatives == 1) {
    return {{native_across(a[0].v, join)}};
  } else {
    float lanes[16] = {};
    for (int64_t i = 0; i < count; ++i)
      lanes[i] = across(a[i], join);
    return load(lanes);
  }
}

constexpr float kLog2e = 1.44269502f, kLog2eRest = 1.92596303e-8f;
#ifndef __AVX512F__
constexpr float kLeastExponent = -127; // 2^that is 0 to native_scaled
inline NativeFloat native_scaled(NativeFloat a, NativeFloat exponent) {
  return a * (NativeFloat)((native_round(exponent) + 127) << 23);
}
#endif

// 2^(whole + left) to about 2 units in the last place: a polynomial for `left`, from -0.5 to 0.5, which is exact at 0 and
// has the least largest relative error elsewhere, 9e-8.
inline NativeFloat native_exp2(NativeFloat whole, NativeFloat left) {
  NativeFloat p = NativeFloat{} + 1.326472725e-3f;
  p = native_fma(p, left, NativeFloat{} + 9.671512786e-3f);
  p = native_fma(p, left, NativeFloat{} + 5.550733744e-2f);
  p = native_fma(p, left, NativeFloat{} + 2.402224208e-1f);
  p = native_fma(p, left, NativeFloat{} + 6.931469776e-1f);
  return native_scaled(native_fma(p, left, NativeFloat{} + 1.0f), whole);
}
// 2^x of numbers up to 127; 0 of minus infinity.
inline Floats exp2(Floats x) {
  each([&](int i) __attribute__((always_inline)) {
    const NativeFloat a = native_max(NativeFloat{} + kLeastExponent, x.v[i]), whole = native_whole(a); // a NaN stays one
    x.v[i] = native_exp2(whole, a - whole);
  });
  return x;
}
// e^x, with x clamped to -88 … 88.
inline Floats exp(Floats x) {
  const NativeFloat log2e = NativeFloat{} + kLog2e, rest = NativeFloat{} + kLog2eRest;
  each([&](int i) __attribute__((always_inline)) {
    NativeFloat a = x.v[i] > 88.0f ? NativeFloat{} + 88.0f : x.v[i];
    a = native_max(NativeFloat{} - 88.0f, a);
    const NativeFloat whole = native_whole(a * log2e);
    x.v[i] = native_exp2(whole, native_fma(a, rest, native_fma(a, log2e, -whole)));
  });
  return x;
}
inline Floats tanh(Floats x) { // 1 - 2 / (e^2x + 1)
  return sub(splat(1), div(splat(2), add(exp(add(x, x)), splat(1))));
}

#undef EACH
