// Half precision by bit arithmetic, for files that are compiled without extensions of the instruction set.
#pragma once

#include <cstdint>

namespace dsedge {

// IEEE 754 binary16, subnormals included: the exponent is moved by a multiplication with 2^112.
static inline float half_to_float(uint16_t half) {
  union {
    uint32_t bits;
    float value;
  } magnitude = {(uint32_t)(half & 0x7fff) << 13}, power = {(uint32_t)(254 - 15) << 23};
  magnitude.value *= power.value;
  if ((half & 0x7c00) == 0x7c00)
    magnitude.bits |= 255u << 23; // infinity or NaN
  magnitude.bits |= (uint32_t)(half & 0x8000) << 16;
  return magnitude.value;
}
static inline uint16_t float_to_half(float x) {
  union {
    float value;
    uint32_t bits;
  } in = {x}, out;
  uint32_t sign = (in.bits >> 16) & 0x8000, magnitude = in.bits & 0x7fffffff;
  if (magnitude >= 0x7f800000)
    return (uint16_t)(sign | (magnitude > 0x7f800000 ? 0x7e00 : 0x7c00));
  if (magnitude >= 0x477ff000) // rounds to more than 65504
    return (uint16_t)(sign | 0x7c00);
  if (magnitude < 0x38800000) { // subnormal: adding 1/2 aligns the bits and rounds them
    out.bits = magnitude;
    out.value += 0.5f;
    return (uint16_t)(sign | (out.bits - 0x3f000000));
  }
  uint32_t odd = (magnitude >> 13) & 1;
  return (uint16_t)(sign | ((magnitude - 0x38000000 + 0xfff + odd) >> 13));
}

} // namespace dsedge
