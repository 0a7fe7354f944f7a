// AVX-512 with VNNI, and with BF16 where the file is compiled for it: sixteen lanes are one register.
#pragma once

constexpr int kNative = 64;
constexpr int kTokens = 4;      // tokens that share a line of codes in registers
constexpr int kHalves = 2;      // of a panel's rows, that share activations in registers
constexpr int kFloatTokens = 4; // tokens that share a column of floats in registers
constexpr int kUnpackFrom = 8;  // tokens: unpacking a block to memory pays from there on
constexpr int kLinesAtOnce = 4; // lines of 16 keys that are scored together
#ifdef __AVX512BF16__
constexpr bool kPairDots = true;
#else
constexpr bool kPairDots = false;
#endif
constexpr bool kMatrixDots = false;
constexpr bool kWideCodes = false;
template <int> constexpr bool kShortSums = false;
typedef float NativeFloat __attribute__((vector_size(64)));
typedef int32_t NativeInt __attribute__((vector_size(64)));
typedef uint8_t NativeByte __attribute__((vector_size(64)));
constexpr int kSignedZero8 = 128; // an 8-bit code is multiplied as it is, 128 too large

inline NativeFloat native_fma(NativeFloat a, NativeFloat b, NativeFloat c) {
  return (NativeFloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
inline NativeFloat native_max(NativeFloat a, NativeFloat b) { return (NativeFloat)_mm512_max_ps((__m512)a, (__m512)b); }
inline NativeInt native_round(NativeFloat a) { return (NativeInt)_mm512_cvtps_epi32((__m512)a); }
inline NativeFloat native_whole(NativeFloat a) { return (NativeFloat)_mm512_roundscale_ps((__m512)a, 8); } // the nearest
constexpr float kLeastExponent = -200; // 2^that is 0 to native_scaled
inline NativeFloat native_scaled(NativeFloat a, NativeFloat exponent) {
  return (NativeFloat)_mm512_scalef_ps((__m512)a, (__m512)exponent);
}
inline NativeFloat native_float(NativeInt a) { return (NativeFloat)_mm512_cvtepi32_ps((__m512i)a); }
inline NativeFloat native_half(const uint16_t *p) {
  return (NativeFloat)_mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p));
}
inline void native_store_half(uint16_t *p, NativeFloat a) {
  _mm256_storeu_si256((__m256i *)p, _mm512_cvtps_ph((__m512)a, _MM_FROUND_TO_NEAREST_INT));
}
// Adds to each lane the products of its 4 codes with the 4 int8 activations of `quad`.
template <int kBits> inline NativeInt native_dot(NativeInt sum, NativeByte codes, int32_t quad) {
  return (NativeInt)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)codes, _mm512_set1_epi32(quad));
}
inline NativeByte native_low(NativeByte a) {
  return (NativeByte)_mm512_and_si512((__m512i)a, _mm512_set1_epi8(15));
}
inline NativeByte native_high(NativeByte a) {
  return (NativeByte)_mm512_and_si512(_mm512_srli_epi16((__m512i)a, 4), _mm512_set1_epi8(15));
}
inline NativeInt native_widen(const uint8_t *p) {
  return (NativeInt)_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p));
}
inline float half_scalar(const uint16_t *p) { return _cvtsh_ss(*p); }
inline uint16_t half_of(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
// Reduces sixteen registers to a lane each, in the order in which `across` reduces one.
template <typename Join> inline NativeFloat native_across(const NativeFloat *a, const Join &join) {
  const auto put = [&](__m512 x, __m512 y) { return (__m512)join((NativeFloat)x, (NativeFloat)y); };
  __m512 half[8], quarter[4], two[2];
  constexpr int kOrder[16] = {0, 2, 1, 3, 8, 10, 9, 11, 4, 6, 5, 7, 12, 14, 13, 15}; // so that lanes end in their order
  __m512 in[16];
#pragma GCC unroll 16
  for (int i = 0; i < 16; ++i)
    in[kOrder[i]] = (__m512)a[i];
#pragma GCC unroll 8
  for (int i = 0; i < 8; ++i)
    half[i] = put(_mm512_shuffle_f32x4(in[i], in[i + 8], 0x44), _mm512_shuffle_f32x4(in[i], in[i + 8], 0xee));
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i)
    quarter[i] = put(_mm512_shuffle_f32x4(half[i], half[i + 4], 0x88), _mm512_shuffle_f32x4(half[i], half[i + 4], 0xdd));
  for (int i = 0; i < 2; ++i)
    two[i] = put(_mm512_shuffle_ps(quarter[i], quarter[i + 2], 0x44), _mm512_shuffle_ps(quarter[i], quarter[i + 2], 0xee));
  return (NativeFloat)put(_mm512_shuffle_ps(two[0], two[1], 0x88), _mm512_shuffle_ps(two[0], two[1], 0xdd));
}

#ifdef __AVX512BF16__
// Pairs of bfloat16 numbers, the first of two in the upper half of a lane: a lane adds the product of the upper halves,
// then that of the lower ones, each as by `fma`.
inline NativeFloat native_pair_dot(NativeFloat sum, uint32_t pair, NativeInt pairs) {
  return (NativeFloat)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32((int)pair), (__m512bh)pairs);
}
// Rounds 32 consecutive numbers to bfloat16: pair i holds numbers 2i and 2i + 1.
inline NativeInt native_neighbours(NativeFloat first, NativeFloat second) {
  return (NativeInt)_mm512_rol_epi32((__m512i)_mm512_cvtne2ps_pbh((__m512)second, (__m512)first), 16);
}
// Float16 numbers as bfloat16, times 2^-112: a shift by three bits moves the exponent to bfloat16's place and leaves its
// bias. Subnormal float16 numbers become subnormal bfloat16 ones, which products take for 0. Inputs are finite.
inline __m512i shrink(__m512i halves) {
  const __m512i eighth = _mm512_mulhrs_epi16(halves, _mm512_set1_epi16(1 << 12)); // rounded
  return _mm512_and_si512(eighth, _mm512_set1_epi16((short)0x8fff));
}
// Pair i holds halves i and 16 + i at `p`, as `shrink` makes them.
inline NativeInt native_half_pairs(const uint16_t *p) {
  const __m512i order = _mm512_set_epi16(15, 31, 14, 30, 13, 29, 12, 28, 11, 27, 10, 26, 9, 25, 8, 24, 7, 23, 6, 22, 5,
                                         21, 4, 20, 3, 19, 2, 18, 1, 17, 0, 16);
  return (NativeInt)shrink(_mm512_permutexvar_epi16(order, _mm512_loadu_si512(p)));
}
// Pair i holds half i at `a` and half i at `b`, as `shrink` makes them.
inline NativeInt native_half_pairs(const uint16_t *a, const uint16_t *b) {
  const __m512i order = _mm512_set_epi16(15, 47, 14, 46, 13, 45, 12, 44, 11, 43, 10, 42, 9, 41, 8, 40, 7, 39, 6, 38, 5,
                                         37, 4, 36, 3, 35, 2, 34, 1, 33, 0, 32);
  const __m512i first = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)a));
  const __m512i second = _mm512_castsi256_si512(_mm256_loadu_si256((const __m256i *)b));
  return (NativeInt)shrink(_mm512_permutex2var_epi16(first, order, second));
}
#endif
