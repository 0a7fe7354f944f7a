#include "context.hpp"

#include "pool.hpp"

#include <algorithm>
#include <stdexcept>

namespace dsedge {

namespace {

// The run of another matrix that lies interleaved with a run, or nullptr: panels of a gate and of what it gates are read
// in turn, and are then one stream of memory.
Run *companion(const Program &program, std::vector<Matrix> &matrices, size_t matrix, size_t run) {
  for (const Instruction &i : program.instructions) {
    const GatedLinear *gated = std::get_if<GatedLinear>(&i.operands);
    if (!gated || static_cast<size_t>(gated->gate) != matrix || gated->gate == gated->up)
      continue;
    const Run &of = matrices[matrix].runs[run];
    for (Run &other : matrices[static_cast<size_t>(gated->up)].runs)
      if (other.first_panel == of.first_panel && other.panels == of.panels)
        return &other;
  }
  return nullptr;
}

// Fills `matrices`; the memory that they lie in.
Memory lay_out_weights(const Program &program, std::vector<Matrix> &matrices) {
  int64_t bytes = 0;
  for (const MatrixShape &shape : program.matrices) {
    matrices.push_back(lay_out(shape));
    for (const Run &run : matrices.back().runs) {
      if (matrices.back().panels > Pool::kMostUnits || run.panel_bytes >= int64_t{1} << 40)
        throw std::invalid_argument("engine: a matrix larger than any memory");
      bytes += run.panels * run.panel_bytes;
      if (bytes >= int64_t{1} << 46)
        throw std::invalid_argument("engine: weights larger than any memory");
    }
  }
  Memory weights(bytes, true);
  uint8_t *at = weights.data();
  for (size_t m = 0; m < matrices.size(); ++m)
    for (size_t n = 0; n < matrices[m].runs.size(); ++n) {
      Run &run = matrices[m].runs[n], *other = companion(program, matrices, m, n);
      if (run.data)
        continue;
      run.data = at;
      if (other && !other->data) {
        other->data = at + run.panel_bytes;
        run.stride = other->stride = run.panel_bytes + other->panel_bytes;
      }
      at += run.panels * run.stride;
    }
  return weights;
}

} // namespace

int32_t AttentionPlans::find(const AttentionCut &cut) const {
  const auto found = std::find(cuts.begin(), cuts.end(), cut);
  return found == cuts.end() ? -1 : static_cast<int32_t>(found - cuts.begin());
}

Context::Context(const Program &of, const Kernels &set, int32_t count, int32_t kv_file)
    : program(of), kernels(set), weights(lay_out_weights(of, matrices)), kv(of.kv, set, kv_file), activations(of, count),
      threads(count), experts(static_cast<size_t>(count)) {}

RowRange Context::rows_of(const Instruction &i) const {
  const int32_t buffer = i.writes.empty() ? i.reads[0] : i.writes[0];
  return {0, program.buffer(buffer).wanted ? static_cast<int64_t>(forward->wanted.size()) : forward->rows};
}

void Context::rotate(int32_t rope, int64_t row, int64_t heads, int64_t dim, float *x) const {
  if (rope == kNone)
    return;
  const Angles &angles = forward->angles[static_cast<size_t>(rope)];
  const int64_t pairs = program.ropes[static_cast<size_t>(rope)];
  kernels.rope(x, heads, dim, pairs * 2, angles.cos + row * pairs, angles.sin + row * pairs);
}

const Segment &Context::segment_of(int64_t row) const {
  const auto after = std::upper_bound(forward->segments.begin(), forward->segments.end(), row,
                                      [](int64_t r, const Segment &segment) { return r < segment.row; });
  return *(after - 1);
}

int64_t Context::number_of(const Instruction &i) const {
  return forwards * static_cast<int64_t>(program.instructions.size()) + (&i - program.instructions.data());
}

} // namespace dsedge
