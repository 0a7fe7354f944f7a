// Armv8.2 NEON with dot products: sixteen lanes are four registers.
#pragma once

constexpr int kNative = 16;
constexpr int kTokens = 2;
constexpr int kUnpackFrom = kTokens; // tokens: unpacking a panel's codes pays from there on
constexpr int kLinesAtOnce = 1; // lines of 16 keys that are scored together
typedef float NativeFloat __attribute__((vector_size(16)));
typedef int32_t NativeInt __attribute__((vector_size(16)));
typedef uint8_t NativeByte __attribute__((vector_size(16)));
constexpr int kSignedZero8 = 0; // native_dot takes 128 off an 8-bit code itself

inline NativeFloat native_fma(NativeFloat a, NativeFloat b, NativeFloat c) {
  return (NativeFloat)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
inline NativeFloat native_max(NativeFloat a, NativeFloat b) { return a > b ? a : b; } // as x86: b where one is NaN
inline NativeInt native_round(NativeFloat a) { return (NativeInt)vcvtnq_s32_f32((float32x4_t)a); }
inline NativeFloat native_float(NativeInt a) { return (NativeFloat)vcvtq_f32_s32((int32x4_t)a); }
inline NativeFloat native_half(const uint16_t *p) {
  return (NativeFloat)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
inline void native_store_half(uint16_t *p, NativeFloat a) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)a)));
}
// Arm multiplies signed by signed: 4-bit codes are that already, 8-bit ones with their top bit turned over.
template <int kBits> inline NativeInt native_dot(NativeInt sum, NativeByte codes, int32_t quad) {
  uint8x16_t c = (uint8x16_t)codes;
  if constexpr (kBits == 8)
    c = veorq_u8(c, vdupq_n_u8(0x80));
  return (NativeInt)vdotq_s32((int32x4_t)sum, vreinterpretq_s8_u8(c), vreinterpretq_s8_s32(vdupq_n_s32(quad)));
}
inline NativeByte native_low(NativeByte a) { return a & 15; }
inline NativeByte native_high(NativeByte a) { return a >> 4; }
inline NativeInt native_widen(const uint8_t *p) { return NativeInt{p[0], p[1], p[2], p[3]}; }
inline float half_scalar(const uint16_t *p) { return vgetq_lane_f32(vcvt_f32_f16(vreinterpret_f16_u16(vdup_n_u16(*p))), 0); }
inline uint16_t half_of(float x) { return vget_lane_u16(vreinterpret_u16_f16(vcvt_f16_f32(vdupq_n_f32(x))), 0); }
