// AVX-512 with VNNI: sixteen lanes are one register.
#pragma once

constexpr int kNative = 64;
constexpr int kTokens = 4; // tokens that share the codes of a panel in registers
constexpr int kUnpackFrom = 8; // tokens: unpacking a panel's codes pays from there on
constexpr int kLinesAtOnce = 2; // lines of 16 keys that are scored together
constexpr bool kMatrixDots = false;
typedef float NativeFloat __attribute__((vector_size(64)));
typedef int32_t NativeInt __attribute__((vector_size(64)));
typedef uint8_t NativeByte __attribute__((vector_size(64)));
constexpr int kSignedZero8 = 128; // an 8-bit code is multiplied as it is, 128 too large

inline NativeFloat native_fma(NativeFloat a, NativeFloat b, NativeFloat c) {
  return (NativeFloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
}
inline NativeFloat native_max(NativeFloat a, NativeFloat b) { return (NativeFloat)_mm512_max_ps((__m512)a, (__m512)b); }
inline NativeInt native_round(NativeFloat a) { return (NativeInt)_mm512_cvtps_epi32((__m512)a); }
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
