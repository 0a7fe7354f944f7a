// The body of a kernel set, included in an anonymous namespace after a file of simd/. Each including file is compiled with
// the flags of its instruction set; the anonymous namespace keeps the linker from sharing its functions with other sets.
#pragma once

#include "simd/lanes.hpp"

inline int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t smaller(int64_t a, int64_t b) { return a < b ? a : b; }

#include "formats/table.hpp"

#include "kernels/attention.hpp"
#include "kernels/linear.hpp"

#include "kernels/float_linear.hpp"
#include "kernels/kv_rows.hpp"
#include "kernels/logits.hpp"
#include "kernels/rows.hpp"

template <typename F> constexpr LinearKernels linear_kernels() {
  if constexpr (F::kCodes)
    return {panel<F>, panel_float<F>, read_row<F>};
  else
    return {nullptr, panel_float<F>, read_row<F>};
}
template <typename... F> struct LinearTable;
template <typename... F> struct LinearTable<List<F...>> {
  static constexpr LinearKernels kRecords[] = {linear_kernels<F>()...};
};

constexpr Kernels table(const char *name) {
  return {name,    LinearTable<Formats>::kRecords, quantize, quantize_block, norm, gate,
          softcap, rope,  write_row,   attend,   tell_attention, merge, largest, exponential_sum, at_least};
}
