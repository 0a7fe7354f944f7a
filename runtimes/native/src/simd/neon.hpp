// Armv8.2 NEON with dot products, and with products of int8 matrices where the file is compiled for them (i8mm):
// sixteen lanes are four registers.
#pragma once

constexpr int kNative = 16;
#ifdef __ARM_FEATURE_MATMUL_INT8
constexpr int kTokens = 2;     // tokens that share a line of codes in registers
constexpr int kUnpackFrom = 2; // tokens: a block is unpacked to tiles
#else
constexpr int kTokens = 4;
constexpr int kUnpackFrom = 9; // tokens: unpacking a block to memory pays from there on
#endif
constexpr int kHalves = 1;      // of a panel's rows, that share activations in registers
constexpr int kFloatTokens = 2; // tokens that share a column of floats in registers
constexpr int kLinesAtOnce = 1; // lines of 16 keys that are scored together
constexpr bool kPairDots = false;
#ifdef __ARM_FEATURE_MATMUL_INT8
constexpr bool kMatrixDots = true;
#else
constexpr bool kMatrixDots = false;
#endif
constexpr bool kWideCodes = false;
template <int> constexpr bool kShortSums = false;
typedef float NativeFloat __attribute__((vector_size(16)));
typedef int32_t NativeInt __attribute__((vector_size(16)));
typedef uint8_t NativeByte __attribute__((vector_size(16)));
constexpr int kSignedZero8 = 0; // native_dot takes 128 off an 8-bit code itself

inline NativeFloat native_fma(NativeFloat a, NativeFloat b, NativeFloat c) {
  return (NativeFloat)vfmaq_f32((float32x4_t)c, (float32x4_t)a, (float32x4_t)b);
}
inline NativeFloat native_max(NativeFloat a, NativeFloat b) { return a > b ? a : b; } // as x86: b where one is NaN
inline NativeInt native_round(NativeFloat a) { return (NativeInt)vcvtnq_s32_f32((float32x4_t)a); }
inline NativeFloat native_whole(NativeFloat a) { return (NativeFloat)vrndnq_f32((float32x4_t)a); }
inline NativeFloat native_float(NativeInt a) { return (NativeFloat)vcvtq_f32_s32((int32x4_t)a); }
inline NativeFloat native_half(const uint16_t *p) {
  return (NativeFloat)vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(p)));
}
inline void native_store_half(uint16_t *p, NativeFloat a) {
  vst1_u16(p, vreinterpret_u16_f16(vcvt_f16_f32((float32x4_t)a)));
}
// Arm multiplies signed by signed: 4-bit codes are that already, 8-bit ones with their top bit flipped.
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

#ifdef __ARM_FEATURE_MATMUL_INT8
// Eight lines [16 rows][4 columns] of codes become four tiles, each of eight registers [2 rows][8 columns] of signed
// numbers. `tiles` may be `lines`.
template <template <int> typename Bits, int kBits>
inline void native_tiles(Bits<kBits>, const uint8_t *lines, uint8_t *tiles) {
  const uint8x16_t flip = vdupq_n_u8(kBits == 8 ? 0x80 : 0);
  for (int pair = 0; pair < 4; ++pair, lines += 128, tiles += 128) {
    uint32x4_t first[4], second[4];
    for (int i = 0; i < 4; ++i) {
      first[i] = vreinterpretq_u32_u8(veorq_u8(vld1q_u8(lines + i * 16), flip));
      second[i] = vreinterpretq_u32_u8(veorq_u8(vld1q_u8(lines + 64 + i * 16), flip));
    }
    for (int i = 0; i < 4; ++i) {
      vst1q_u8(tiles + i * 32, vreinterpretq_u8_u32(vzip1q_u32(first[i], second[i])));
      vst1q_u8(tiles + i * 32 + 16, vreinterpretq_u8_u32(vzip2q_u32(first[i], second[i])));
    }
  }
}
// The products of four tiles, 16 rows by 32 columns, with the activations of two tokens.
template <typename Bits>
inline void native_tile_dots(Bits, const uint8_t *tiles, const int8_t *x, const int8_t *y, NativeInt *one, NativeInt *two) {
  int32x4_t sums[8] = {}; // [2 tokens][2 rows] each
#pragma GCC unroll 4
  for (int tile = 0; tile < 4; ++tile) {
    const int8x16_t both = vcombine_s8(vld1_s8(x + tile * 8), vld1_s8(y + tile * 8));
#pragma GCC unroll 8
    for (int i = 0; i < 8; ++i)
      sums[i] = vmmlaq_s32(sums[i], both, vld1q_s8((const int8_t *)tiles + tile * 128 + i * 16));
  }
#pragma GCC unroll 4
  for (int i = 0; i < 4; ++i) {
    const int64x2_t a = vreinterpretq_s64_s32(sums[i * 2]), b = vreinterpretq_s64_s32(sums[i * 2 + 1]);
    one[i] = (NativeInt)vuzp1q_s64(a, b);
    two[i] = (NativeInt)vuzp2q_s64(a, b);
  }
}
#endif
