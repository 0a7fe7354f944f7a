// AVX2 with FMA and F16C, and AVX-VNNI where the file is compiled for it: sixteen lanes are two registers.
#pragma once

constexpr int kNative = 32;
constexpr int kTokens = 2;      // tokens that share a line of codes in registers
constexpr int kHalves = 2;      // of a panel's rows, that share activations in registers
constexpr int kFloatTokens = 3; // tokens that share a column of floats in registers
constexpr int kUnpackFrom = 4;  // tokens: unpacking a block to memory pays from there on
constexpr int kLinesAtOnce = 1; // lines of 16 keys that are scored together
constexpr bool kPairDots = false;
constexpr bool kMatrixDots = false;
typedef float NativeFloat __attribute__((vector_size(32)));
typedef int32_t NativeInt __attribute__((vector_size(32)));
typedef uint8_t NativeByte __attribute__((vector_size(32)));
constexpr int kSignedZero8 = 128; // an 8-bit code is multiplied as it is, 128 too large
#ifdef __AVXVNNI__
constexpr bool kWideCodes = false;
template <int> constexpr bool kShortSums = false;
#else
constexpr bool kWideCodes = true;
template <int kBits> constexpr bool kShortSums = kBits == 4; // of a block: 16 · 15 · 127 < 2^15
#endif

inline NativeFloat native_fma(NativeFloat a, NativeFloat b, NativeFloat c) {
  return (NativeFloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)c);
}
inline NativeFloat native_max(NativeFloat a, NativeFloat b) { return (NativeFloat)_mm256_max_ps((__m256)a, (__m256)b); }
inline NativeInt native_round(NativeFloat a) { return (NativeInt)_mm256_cvtps_epi32((__m256)a); }
inline NativeFloat native_whole(NativeFloat a) { return (NativeFloat)_mm256_round_ps((__m256)a, 8); } // the nearest
inline NativeFloat native_float(NativeInt a) { return (NativeFloat)_mm256_cvtepi32_ps((__m256i)a); }
inline NativeFloat native_half(const uint16_t *p) {
  return (NativeFloat)_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p));
}
inline void native_store_half(uint16_t *p, NativeFloat a) {
  _mm_storeu_si128((__m128i *)p, _mm256_cvtps_ph((__m256)a, _MM_FROUND_TO_NEAREST_INT));
}
template <int kBits> inline NativeInt native_dot(NativeInt sum, NativeByte codes, int32_t quad) {
  const __m256i c = (__m256i)codes, x = _mm256_set1_epi32(quad);
#ifdef __AVXVNNI__
  return (NativeInt)_mm256_dpbusd_avx_epi32((__m256i)sum, c, x);
#else
  __m256i r = (__m256i)sum;
  if constexpr (kBits == 8) // two numbers of 16 bits
    r = _mm256_add_epi32(r, _mm256_madd_epi16(c, x));
  else
    r = _mm256_add_epi16(r, _mm256_maddubs_epi16(c, x));
  asm("" : "+x"(r)); // GCC would compute all products before it adds any, and have no registers for them
  return (NativeInt)r;
#endif
}
#ifndef __AVXVNNI__
inline NativeInt native_widen_sums(NativeInt sums) {
  return (NativeInt)_mm256_madd_epi16((__m256i)sums, _mm256_set1_epi16(1));
}
// The activations of a block as 16-bit numbers, of even columns and of odd ones: hi, or with lo 128 · hi + lo.
template <typename Bits> inline void native_widen_block(Bits, const int8_t *hi, const int8_t *lo, int16_t (&out)[32]) {
  const auto even = [](__m256i x) { return _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8); };
  const auto odd = [](__m256i x) { return _mm256_srai_epi16(x, 8); };
  const __m256i upper = _mm256_loadu_si256((const __m256i *)hi);
  __m256i first = even(upper), second = odd(upper);
  if (lo) {
    const __m256i lower = _mm256_loadu_si256((const __m256i *)lo);
    first = _mm256_add_epi16(_mm256_slli_epi16(first, 7), even(lower));
    second = _mm256_add_epi16(_mm256_slli_epi16(second, 7), odd(lower));
  }
  _mm256_storeu_si256((__m256i *)out, first);
  _mm256_storeu_si256((__m256i *)(out + 16), second);
}
#endif
inline NativeByte native_low(NativeByte a) {
  return (NativeByte)_mm256_and_si256((__m256i)a, _mm256_set1_epi8(15));
}
inline NativeByte native_high(NativeByte a) {
  return (NativeByte)_mm256_and_si256(_mm256_srli_epi16((__m256i)a, 4), _mm256_set1_epi8(15));
}
inline NativeInt native_widen(const uint8_t *p) {
  return (NativeInt)_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p));
}
inline float half_scalar(const uint16_t *p) { return _cvtsh_ss(*p); }
inline uint16_t half_of(float x) { return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT); }
