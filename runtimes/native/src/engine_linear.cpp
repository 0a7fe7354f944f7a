// Linears: a unit is a panel of 32 rows of the weight, or of a gated pair the panel of each, for some rows of activations.
#include "engine.hpp"

#include <algorithm>

namespace dsedge {

// Units begin … end - 1.
void Engine::linear(const Instruction &i, const Instruction *before, int32_t begin, int32_t end, RowRange rows,
                    int32_t thread) {
  Scratch &scratch = activations_.scratch(thread);
  read_input(i, before, rows, begin == 0, scratch);
  for (int64_t unit = begin; unit < end; ++unit)
    if (i.gated) {
      product(i, unit * 2, rows, scratch, scratch.results);
      product(i, unit * 2 + 1, rows, scratch, scratch.others);
      put_gated(i, unit, rows, scratch);
    } else {
      product(i, unit, rows, scratch, scratch.results);
      put(i, unit, rows, scratch.results);
    }
}

// What each thread needs to know once of the quantized rows that a linear reads: which blocks are flagged, or, where
// they are not there yet, the row itself. The thread that has the first unit (`all`) makes it for later instructions too.
void Engine::read_input(const Instruction &i, const Instruction *before, RowRange rows, bool all, Scratch &scratch) {
  const int64_t here = runs_ * static_cast<int64_t>(program_.instructions.size()) + (&i - program_.instructions.data());
  if (i.quantized == kNone || (scratch.read_by == here && scratch.read_from == rows.first))
    return;
  scratch.input = activations_.quantized(i.quantized).from(rows.first);
  if (before && !all) {
    scratch.own_codes.blocks = scratch.input.blocks;
    scratch.input = scratch.own_codes;
  }
  if (before)
    normalize(*before, 0, all && before->op == Op::kNorm ? activations_.row(before->out, 0) : scratch.own_row, scratch.input);
  if (rows.count > 1)
    find_flagged(scratch.input, rows.count, scratch.flagged);
  scratch.read_by = here;
  scratch.read_from = rows.first;
}

void Engine::product(const Instruction &i, int64_t panel, RowRange rows, const Scratch &scratch, float *out) {
  const Matrix &m = matrices_[static_cast<size_t>(i.matrix)];
  if (i.quantized != kNone)
    kernels_.panel(m, panel, scratch.input, scratch.flagged, rows.count, scratch.panel, out);
  else
    kernels_.panel_float(m, panel, activations_.row(i.a, rows.first), m.columns, rows.count,
                         reinterpret_cast<float *>(scratch.panel), out);
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
void Engine::put(const Instruction &i, int64_t panel, RowRange rows, float *results) {
  const Part *part = i.parts.data();
  while (panel >= panels_of(part->rows))
    panel -= panels_of(part++->rows);
  const int64_t first = panel * kPanel, count = std::min<int64_t>(kPanel, part->rows - first);
  add_bias(part->bias, first, count, rows.count, results);
  for (int64_t row = 0; row < rows.count; ++row) {
    float *out = activations_.row(part->buffer, rows.first + row) + first;
    const float *result = results + row * kPanel;
    const float *residual = i.b == kNone ? nullptr : activations_.row(i.b, rows.first + row) + first;
    for (int64_t n = 0; n < count; ++n)
      out[n] = residual ? residual[n] + result[n] : result[n];
  }
}

// Thirty-two numbers of the activated gate are one block of what the next linear reads. Those that the last panel has
// too many are 0.
void Engine::put_gated(const Instruction &i, int64_t unit, RowRange rows, const Scratch &scratch) {
  const int64_t first = unit * kPanel, count = std::min<int64_t>(kPanel, i.parts[0].rows - first);
  add_bias(i.parts[0].bias, first, count, rows.count, scratch.results);
  add_bias(i.parts[1].bias, first, count, rows.count, scratch.others);
  kernels_.gate(scratch.results, scratch.others, rows.count * kPanel, i.activation, scratch.results);
  if (i.quantized_out != kNone)
    return kernels_.quantize_block(scratch.results, rows.count, i.crest,
                                   activations_.quantized(i.quantized_out).from(rows.first), unit);
  for (int64_t row = 0; row < rows.count; ++row)
    std::copy_n(scratch.results + row * kPanel, count, activations_.row(i.out, rows.first + row) + first);
}

} // namespace dsedge
