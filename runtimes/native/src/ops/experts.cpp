// Rows are gathered by expert: its weights are read once for all rows that have chosen it, and not at all if none has. A
// task is one panel of every expert.
#include "ops/product.hpp"

#include <algorithm>
#include <cstring>

namespace dsedge {

namespace {

constexpr int64_t kGathered = 64; // rows that are gathered at a time

// A chosen expert's part of a row is padded as a row of codes would be.
int64_t slot_width(int64_t size) { return padded_codes(size); }

// Room for the lists of a forward's rows, and for gathered rows of `width` numbers.
void plan_experts(Context &ctx, const Forward &f, int64_t experts, int64_t top_k, int64_t width) {
  const size_t rows = std::max(static_cast<size_t>(f.rows), f.wanted.size());
  const size_t blocks = static_cast<size_t>(slot_width(width) / kBlock), most = blocks * kGathered;
  for (ExpertScratch &s : ctx.experts) {
    const auto grow = [](auto &list, size_t size) { list.resize(std::max(list.size(), size)); };
    grow(s.starts, static_cast<size_t>(experts) + 2);
    grow(s.rows, rows * static_cast<size_t>(top_k));
    grow(s.slots, rows * static_cast<size_t>(top_k));
    grow(s.hi, most * kBlock);
    grow(s.lo, most * kBlock);
    grow(s.blocks, most);
    grow(s.flags, most);
    grow(s.flagged, static_cast<size_t>(tiles_of(kGathered)) * blocks);
    grow(s.floats, most * kBlock);
  }
}

// Lists the rows that have chosen each expert, and the expert's place among those of the row. Of a row the first `top_k`
// experts with a weight count.
void find_chosen(const Context &ctx, const Instruction &i, int32_t routing, int64_t top_k, RowRange rows, ExpertScratch &s) {
  const int64_t here = ctx.number_of(i), experts = ctx.width(routing);
  if (s.read_by == here && s.read_from == rows.first)
    return;
  std::fill_n(s.starts.begin(), experts + 2, 0);
  const auto each = [&](const auto &work) {
    for (int64_t row = rows.first; row < rows.first + rows.count; ++row) {
      const float *weights = ctx.row(routing, row);
      int32_t slot = 0;
      for (int64_t e = 0; e < experts && slot < top_k; ++e)
        if (weights[e] != 0)
          work(e, row, slot++);
    }
  };
  each([&](int64_t e, int64_t, int32_t) { ++s.starts[static_cast<size_t>(e) + 2]; });
  for (int64_t e = 0; e < experts; ++e)
    s.starts[static_cast<size_t>(e) + 2] += s.starts[static_cast<size_t>(e) + 1];
  // starts[e + 1] is where expert e begins, and moves on to where it ends.
  each([&](int64_t e, int64_t row, int32_t slot) {
    const size_t at = static_cast<size_t>(s.starts[static_cast<size_t>(e) + 1]++);
    s.rows[at] = row;
    s.slots[at] = slot;
  });
  s.read_by = here;
  s.read_from = rows.first;
}

// Gathers rows s.rows[first] … of a buffer: of each `width` numbers, from its expert's slot on if `by_slot`, else from 0.
Inputs gather(const Context &ctx, int32_t buffer, int64_t width, bool by_slot, int64_t first, int64_t count,
              ExpertScratch &s) {
  const auto offset = [&](int64_t n) { return by_slot ? s.slots[static_cast<size_t>(first + n)] * width : 0; };
  const auto row = [&](int64_t n) { return s.rows[static_cast<size_t>(first + n)]; };
  Inputs in;
  in.stride = width;
  in.count = count;
  if (!ctx.program.buffer(buffer).codes) {
    in.floats = count == 1 ? ctx.row(buffer, row(0)) + offset(0) : s.floats.data();
    for (int64_t n = 0; count > 1 && n < count; ++n)
      std::copy_n(ctx.row(buffer, row(n)) + offset(n), width, s.floats.data() + n * width);
    return in;
  }
  const int64_t blocks = width / kBlock;
  in.codes = {s.hi.data(), s.lo.data(), s.blocks.data(), s.flags.data(), blocks};
  in.flagged = s.flagged.data();
  for (int64_t n = 0; n < count; ++n) {
    const QuantRows from = ctx.activations.codes(buffer).from(row(n)).after(offset(n) / kBlock);
    if (count == 1) {
      in.codes = from;
      break;
    }
    const QuantRows to = in.codes.from(n);
    std::copy_n(from.hi, width, to.hi);
    std::copy_n(from.lo, width, to.lo);
    std::copy_n(from.block, blocks, to.block);
    std::copy_n(from.flag, blocks, to.flag);
  }
  find_flagged(in.codes, count, s.flagged.data());
  return in;
}

// Calls work(expert, inputs, first, count) for each expert that was chosen, some of its rows at a time: s.rows[first] ….
template <typename Work>
void each_expert(const Context &ctx, int32_t buffer, int64_t width, bool by_slot, int64_t experts, ExpertScratch &s,
                 const Work &work) {
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t last = s.starts[static_cast<size_t>(e) + 1];
    for (int64_t first = s.starts[static_cast<size_t>(e)]; first < last; first += kGathered) {
      const int64_t count = std::min(kGathered, last - first);
      work(e, gather(ctx, buffer, width, by_slot, first, count, s), first, count);
    }
  }
}

// Width of a row of an input as gathered: codes have whole fours of blocks.
int64_t input_width(const Context &ctx, int32_t buffer) {
  return ctx.program.buffer(buffer).codes ? slot_width(ctx.width(buffer)) : ctx.width(buffer);
}

Cost expert_cost(const MatrixShape &m, int64_t experts, int64_t top_k) {
  Cost cost = product_cost(m);
  cost.row *= static_cast<double>(top_k) / static_cast<double>(experts);
  return cost;
}

// ---- activation(gate) · up ----

// `padded`: numbers of the input that belong to an expert's columns.
void verify_experts(const Checker &check, const MatrixShape &m, const Buffer &in, int64_t padded, int64_t experts) {
  verify_product(check, in, m, padded);
  check.require(m.rows.size() == static_cast<size_t>(experts), "another number of weights than experts");
  for (int64_t rows : m.rows)
    check.require(rows == m.rows[0], "experts of several sizes");
}

const MatrixShape &gate_of(const Program &program, const Instruction &i) { return program.matrix(as<ExpertGate>(i).gate); }
const MatrixShape &up_of(const Program &program, const Instruction &i) { return program.matrix(as<ExpertGate>(i).up); }

void verify_gates(const Checker &check, const Instruction &i) {
  const ExpertGate &o = as<ExpertGate>(i);
  const MatrixShape &gate = gate_of(check.program, i), &up = up_of(check.program, i);
  const Buffer &in = check.program.buffer(o.input);
  const int64_t experts = check.floats(o.routing).width;
  for (const MatrixShape *m : {&gate, &up}) {
    check.require(in.width == m->columns, "an input that does not fit its matrix");
    verify_experts(check, *m, in, padded_codes(m->columns), experts);
  }
  check.require(gate.rows == up.rows, "matrices of other rows");
  check.require(o.top_k > 0 && o.top_k <= experts, "more chosen experts than there are");
  check.require(check.program.buffer(o.output).width == o.top_k * slot_width(gate.rows[0]) && o.crest >= 0,
                "an output that does not fit");
  check.require(o.output != o.input && o.output != o.routing, "an output that is its input");
}

void reserve_gates(const Program &program, const Instruction &i, Room &room) { reserve_product(gate_of(program, i), room); }

Cost gates_cost(const Program &program, const Instruction &i) {
  const int64_t experts = program.buffer(as<ExpertGate>(i).routing).width, top_k = as<ExpertGate>(i).top_k;
  return {.row = expert_cost(gate_of(program, i), experts, top_k).row + expert_cost(up_of(program, i), experts, top_k).row};
}

void plan_gates(Context &ctx, const Instruction &i, const Forward &f) {
  const ExpertGate &o = as<ExpertGate>(i);
  plan_experts(ctx, f, ctx.width(o.routing), o.top_k, ctx.width(o.input));
}

int64_t gates_tasks(const Context &ctx, const Instruction &i) { return panels_of(gate_of(ctx.program, i).rows[0]); }

// Writes 32 numbers of a row to an expert's slot, and the slot's padding behind the last panel.
void put_gates(const Context &ctx, const ExpertGate &o, int64_t panel, int64_t panels, int64_t row, int64_t slot,
               const float *results, int64_t stride) {
  if (!ctx.program.buffer(o.output).codes) {
    float *out = ctx.row(o.output, row) + slot * stride;
    std::copy_n(results, kPanel, out + panel * kPanel);
    if (panel + 1 == panels)
      std::fill(out + panels * kPanel, out + stride, 0.0f);
    return;
  }
  const QuantRows to = ctx.activations.codes(o.output).from(row);
  const int64_t first = slot * (stride / kBlock);
  ctx.kernels.quantize_block(results, 1, o.crest, to, first + panel);
  if (panel + 1 == panels)
    for (int64_t block = first + panels; block < first + stride / kBlock; ++block) {
      std::memset(to.hi + block * kBlock, 0, kBlock);
      to.block[block] = {};
      to.flag[block] = 0;
    }
}

void run_gates(Context &ctx, const Instruction &i, const Instruction *, int64_t begin, int64_t end, RowRange rows,
               int32_t thread) {
  const ExpertGate &o = as<ExpertGate>(i);
  const Matrix &gate = ctx.matrix(o.gate), &up = ctx.matrix(o.up);
  const int64_t panels = gates_tasks(ctx, i), stride = slot_width(gate_of(ctx.program, i).rows[0]);
  Scratch &scratch = ctx.activations.scratch(thread);
  ExpertScratch &s = ctx.experts[static_cast<size_t>(thread)];
  find_chosen(ctx, i, o.routing, o.top_k, rows, s);
  each_expert(ctx, o.input, input_width(ctx, o.input), false, ctx.width(o.routing), s,
              [&](int64_t e, const Inputs &in, int64_t first, int64_t count) {
                for (int64_t panel = begin; panel < end; ++panel) {
                  product(ctx, in, gate, e * panels + panel, scratch, scratch.results);
                  product(ctx, in, up, e * panels + panel, scratch, scratch.others);
                  ctx.kernels.gate(scratch.results, scratch.others, count * kPanel, o.activation.kind, scratch.results);
                  for (int64_t n = 0; n < count; ++n)
                    put_gates(ctx, o, panel, panels, s.rows[static_cast<size_t>(first + n)],
                              s.slots[static_cast<size_t>(first + n)], scratch.results + n * kPanel, stride);
                }
              });
}

// ---- the sum of what they come to ----

const MatrixShape &downs_of(const Program &program, const Instruction &i) { return program.matrix(as<ExpertDown>(i).matrix); }

void verify_downs(const Checker &check, const Instruction &i) {
  const ExpertDown &o = as<ExpertDown>(i);
  const MatrixShape &m = downs_of(check.program, i);
  const Buffer &in = check.program.buffer(o.input);
  const int64_t experts = check.floats(o.routing).width;
  check.require(in.width == o.top_k * slot_width(m.columns), "an input that does not fit its matrix");
  verify_experts(check, m, in, slot_width(m.columns), experts);
  check.require(o.top_k > 0 && o.top_k <= experts, "more chosen experts than there are");
  check.require(check.floats(o.output).width == m.rows[0], "an output that does not fit");
  check.require(o.output != o.input && o.output != o.routing, "an output that is its input");
}

void reserve_downs(const Program &program, const Instruction &i, Room &room) { reserve_product(downs_of(program, i), room); }

Cost downs_cost(const Program &program, const Instruction &i) {
  return expert_cost(downs_of(program, i), program.buffer(as<ExpertDown>(i).routing).width, as<ExpertDown>(i).top_k);
}

void plan_downs(Context &ctx, const Instruction &i, const Forward &f) {
  const ExpertDown &o = as<ExpertDown>(i);
  plan_experts(ctx, f, ctx.width(o.routing), o.top_k, downs_of(ctx.program, i).columns);
}

int64_t downs_tasks(const Context &ctx, const Instruction &i) { return panels_of(downs_of(ctx.program, i).rows[0]); }

// Experts are added in their order, so a row's sum does not depend on other rows.
void run_downs(Context &ctx, const Instruction &i, const Instruction *, int64_t begin, int64_t end, RowRange rows,
               int32_t thread) {
  const ExpertDown &o = as<ExpertDown>(i);
  const Matrix &m = ctx.matrix(o.matrix);
  const int64_t panels = downs_tasks(ctx, i), width = ctx.width(o.output);
  Scratch &scratch = ctx.activations.scratch(thread);
  ExpertScratch &s = ctx.experts[static_cast<size_t>(thread)];
  const int64_t from = begin * kPanel, to = std::min(end * kPanel, width);
  for (int64_t row = rows.first; row < rows.first + rows.count; ++row)
    std::fill(ctx.row(o.output, row) + from, ctx.row(o.output, row) + to, 0.0f);
  find_chosen(ctx, i, o.routing, o.top_k, rows, s);
  each_expert(ctx, o.input, slot_width(downs_of(ctx.program, i).columns), true, ctx.width(o.routing), s,
              [&](int64_t e, const Inputs &in, int64_t first, int64_t count) {
                for (int64_t panel = begin; panel < end; ++panel) {
                  product(ctx, in, m, e * panels + panel, scratch, scratch.results);
                  const int64_t numbers = std::min<int64_t>(kPanel, width - panel * kPanel);
                  for (int64_t n = 0; n < count; ++n) {
                    const int64_t row = s.rows[static_cast<size_t>(first + n)];
                    const float weight = ctx.row(o.routing, row)[e];
                    float *out = ctx.row(o.output, row) + panel * kPanel;
                    for (int64_t k = 0; k < numbers; ++k)
                      out[k] += weight * scratch.results[n * kPanel + k];
                  }
                }
              });
}

} // namespace

extern const Op kExpertGateOp, kExpertDownOp;
const Op kExpertGateOp = {.name = "expert_gate",
                          .verify = verify_gates,
                          .cost = gates_cost,
                          .run_rows = run_all_panels<run_gates, gates_tasks>,
                          .reserve = reserve_gates,
                          .plan = plan_gates,
                          .tasks = gates_tasks,
                          .run_tasks = run_panel_tasks<run_gates>};
const Op kExpertDownOp = {.name = "expert_down",
                          .verify = verify_downs,
                          .cost = downs_cost,
                          .run_rows = run_all_panels<run_downs, downs_tasks>,
                          .reserve = reserve_downs,
                          .plan = plan_downs,
                          .tasks = downs_tasks,
                          .run_tasks = run_panel_tasks<run_downs>};

} // namespace dsedge
