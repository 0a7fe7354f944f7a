// Linears: a unit is a panel of 32 rows for all tokens, or of a gated pair the panel of each.
#include "engine.hpp"

#include <algorithm>

namespace dsedge {

void Engine::linear(const Instruction &i, int64_t unit, int32_t thread) {
  Scratch &scratch = activations_.scratch(thread);
  const Buffer &in = i.quantized == kNone ? program_.buffers[static_cast<size_t>(i.a)]
                                          : program_.quantized[static_cast<size_t>(i.quantized)];
  const int64_t rows = rows_of(in);
  const int64_t here = runs_ * static_cast<int64_t>(program_.instructions.size()) + (&i - program_.instructions.data());
  // Each thread looks once at what the linear reads.
  if (i.quantized != kNone && rows > 1 && scratch.flagged_in != here) {
    find_flagged(activations_.quantized(i.quantized), rows, scratch.flagged);
    scratch.flagged_in = here;
  }
  if (i.gated) {
    product(i, unit * 2, rows, scratch, scratch.results);
    product(i, unit * 2 + 1, rows, scratch, scratch.others);
    put_gated(i, unit, rows, scratch);
  } else {
    product(i, unit, rows, scratch, scratch.results);
    put(i, unit, rows, scratch.results);
  }
}

void Engine::product(const Instruction &i, int64_t panel, int64_t rows, const Scratch &scratch, float *out) {
  const Matrix &m = matrices_[static_cast<size_t>(i.matrix)];
  if (i.quantized != kNone)
    kernels_.panel(m, panel, activations_.quantized(i.quantized), scratch.flagged, rows, scratch.panel, out);
  else
    kernels_.panel_float(m, panel, activations_.row(i.a, 0), m.columns, rows, reinterpret_cast<float *>(scratch.panel),
                         out);
}

void Engine::add_bias(int32_t bias, int64_t first, int64_t count, int64_t rows, float *results) const {
  if (bias == kNone)
    return;
  const float *values = program_.vectors[static_cast<size_t>(bias)].data() + first;
  for (int64_t row = 0; row < rows; ++row)
    for (int64_t n = 0; n < count; ++n)
      results[row * kPanel + n] += values[n];
}

// Writes the results of a panel to the rows of its part, with bias and residual.
void Engine::put(const Instruction &i, int64_t panel, int64_t rows, float *results) {
  const Part *part = i.parts.data();
  while (panel >= panels_of(part->rows))
    panel -= panels_of(part++->rows);
  const int64_t first = panel * kPanel, count = std::min<int64_t>(kPanel, part->rows - first);
  add_bias(part->bias, first, count, rows, results);
  for (int64_t row = 0; row < rows; ++row) {
    float *out = activations_.row(part->buffer, row) + first;
    const float *result = results + row * kPanel;
    const float *residual = i.b == kNone ? nullptr : activations_.row(i.b, row) + first;
    for (int64_t n = 0; n < count; ++n)
      out[n] = residual ? residual[n] + result[n] : result[n];
  }
}

// Thirty-two numbers of the activated gate are one block of what the next linear reads. Those that the last panel has
// too many are 0.
void Engine::put_gated(const Instruction &i, int64_t unit, int64_t rows, const Scratch &scratch) {
  const int64_t first = unit * kPanel, count = std::min<int64_t>(kPanel, i.parts[0].rows - first);
  add_bias(i.parts[0].bias, first, count, rows, scratch.results);
  add_bias(i.parts[1].bias, first, count, rows, scratch.others);
  kernels_.gate(scratch.results, scratch.others, rows * kPanel, i.activation, scratch.results);
  if (i.quantized_out != kNone)
    return kernels_.quantize_block(scratch.results, rows, i.crest, activations_.quantized(i.quantized_out), unit);
  for (int64_t row = 0; row < rows; ++row)
    std::copy_n(scratch.results + row * kPanel, count, activations_.row(i.out, row) + first);
}

} // namespace dsedge
