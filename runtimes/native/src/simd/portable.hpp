// Plain C++ on vectors of four; tests compare the other sets with it. A multiply-add rounds twice, float16 is converted by
// bit arithmetic.
#pragma once

constexpr int kNative = 16;
constexpr int kTokens = 2, kHalves = 2, kFloatTokens = 2, kUnpackFrom = 3;
constexpr int kLinesAtOnce = 1; // lines of 16 keys that are scored together
constexpr bool kPairDots = false;
constexpr bool kMatrixDots = false;
constexpr bool kWideCodes = false;
template <int> constexpr bool kShortSums = false;
typedef float NativeFloat __attribute__((vector_size(16)));
typedef int32_t NativeInt __attribute__((vector_size(16)));
typedef uint8_t NativeByte __attribute__((vector_size(16)));
constexpr int kSignedZero8 = 128;

inline NativeFloat native_fma(NativeFloat a, NativeFloat b, NativeFloat c) { return a * b + c; }
inline NativeFloat native_max(NativeFloat a, NativeFloat b) { return a > b ? a : b; }
inline NativeInt native_round(NativeFloat a) { // adding 1.5 * 2^23 leaves the nearest integer in the low bits
  const NativeFloat shift = {12582912.0f, 12582912.0f, 12582912.0f, 12582912.0f};
  return (NativeInt)(a + shift) - (NativeInt)shift;
}
inline NativeFloat native_float(NativeInt a) { return __builtin_convertvector(a, NativeFloat); }
inline NativeFloat native_whole(NativeFloat a) { return native_float(native_round(a)); }

inline NativeFloat native_half(const uint16_t *p) {
  return NativeFloat{half_to_float(p[0]), half_to_float(p[1]), half_to_float(p[2]), half_to_float(p[3])};
}
inline void native_store_half(uint16_t *p, NativeFloat a) {
  for (int i = 0; i < 4; ++i)
    p[i] = float_to_half(a[i]);
}
template <int kBits> inline NativeInt native_dot(NativeInt sum, NativeByte codes, int32_t quad) {
  for (int lane = 0; lane < 4; ++lane)
    for (int i = 0; i < 4; ++i)
      sum[lane] += (int32_t)codes[lane * 4 + i] * (int8_t)((uint32_t)quad >> (8 * i));
  return sum;
}
inline NativeByte native_low(NativeByte a) { return a & 15; }
inline NativeByte native_high(NativeByte a) { return a >> 4; }
inline NativeInt native_widen(const uint8_t *p) { return NativeInt{p[0], p[1], p[2], p[3]}; }
inline float half_scalar(const uint16_t *p) { return half_to_float(*p); }
inline uint16_t half_of(float x) { return float_to_half(x); }
