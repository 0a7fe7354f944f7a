// AVX2 with FMA and F16C, and AVX-VNNI where the file is compiled for it: sixteen lanes are two registers.
#pragma once

constexpr int kNative = 32;
constexpr int kTokens = 2;
#ifdef __AVXVNNI__
constexpr int kUnpackFrom = 5; // tokens: unpacking a panel's codes pays from there on
#else
constexpr int kUnpackFrom = kTokens;
#endif
constexpr int kLinesAtOnce = 1; // lines of 16 keys that are scored together
constexpr bool kPairDots = false;
constexpr bool kMatrixDots = false;
typedef float NativeFloat __attribute__((vector_size(32)));
typedef int32_t NativeInt __attribute__((vector_size(32)));
typedef uint8_t NativeByte __attribute__((vector_size(32)));
#ifdef __AVXVNNI__
constexpr int kSignedZero8 = 128;
#else
constexpr int kSignedZero8 = 0; // native_dot takes 128 off an 8-bit code itself
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
  __m256i c = (__m256i)codes, x = _mm256_set1_epi32(quad);
#ifdef __AVXVNNI__
  return (NativeInt)_mm256_dpbusd_avx_epi32((__m256i)sum, c, x);
#else
  if constexpr (kBits == 8) { // |code - 128| times an activation with its sign: the pair sums stay in 16 bits
    c = _mm256_xor_si256(c, _mm256_set1_epi8((char)0x80));
    x = _mm256_sign_epi8(x, c);
    c = _mm256_abs_epi8(c);
  }
  __m256i pairs = _mm256_madd_epi16(_mm256_maddubs_epi16(c, x), _mm256_set1_epi16(1));
  return (NativeInt)_mm256_add_epi32((__m256i)sum, pairs);
#endif
}
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
