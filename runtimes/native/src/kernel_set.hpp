// The body of a kernel set, for inclusion in an anonymous namespace after the lanes_*.hpp of an instruction set: each
// file that includes it is compiled with that set's flags and must share no function with the others.
#pragma once

#include "lanes.hpp"

inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

#include "body_attention.hpp"
#include "body_linear.hpp"
#include "body_floats.hpp"
#include "body_rows.hpp"
#include "body_store.hpp"

constexpr Kernels table(const char *name) {
  return {name,    panel, panel_float, quantize, quantize_block, norm, gate,
          softcap, rope,  write_row,   attend,   merge};
}
