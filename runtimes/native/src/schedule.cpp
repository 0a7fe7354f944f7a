#include "schedule.hpp"

#include <algorithm>

namespace dsedge {

namespace {

constexpr int64_t kLeastBand = 48, kMostBand = 256; // rows, on average
constexpr int64_t kEqual = 4;                         // bands end at a multiple, for the tiles of products

// The most activations of a band: they are to stay in the caches of one core.
constexpr int64_t kMostBytes = int64_t{4} << 20;

int64_t row_bytes(const Program &program) {
  int64_t bytes = 0;
  for (const Buffer &buffer : program.buffers)
    bytes += buffer.wanted ? 0 : buffer.width * (buffer.codes ? 1 : 4);
  return bytes;
}

// Multiply-adds of a row in all instructions, and with each position that it sees, by ring.
struct Products {
  double row = 0;
  std::vector<double> position;
};

Products count_products(const Program &program) {
  Products products;
  products.position.resize(program.kv.rings.size());
  for (const Instruction &i : program.instructions) {
    const Cost cost = i.op().cost(program, i);
    products.row += cost.row;
    if (cost.ring != kNone)
      products.position[static_cast<size_t>(cost.ring)] += cost.position;
  }
  return products;
}

} // namespace

std::vector<bool> find_leads(const Program &program) {
  std::vector<bool> found(program.instructions.size());
  for (size_t n = 0; n + 1 < found.size(); ++n) {
    const Instruction &i = program.instructions[n];
    found[n] = i.op().leads && i.op().leads(i, program.instructions[n + 1]);
  }
  return found;
}

std::vector<int64_t> cut_bands(const Program &program, const std::vector<Segment> &segments, int64_t rows,
                               int32_t threads) {
  const int64_t count = threads * ((rows + kMostBand * threads - 1) / (kMostBand * threads));
  if (rows < kLeastBand * threads || rows / count * row_bytes(program) > kMostBytes)
    return {};
  const Products products = count_products(program);
  std::vector<double> until; // work up to and with each row
  double sum = 0;
  for (const Segment &segment : segments)
    for (int64_t i = 0; i < segment.count; ++i) {
      sum += products.row;
      for (size_t ring = 0; ring < products.position.size(); ++ring)
        sum += products.position[ring] *
               static_cast<double>(std::min(segment.position + i + 1, program.kv.rings[ring].window));
      until.push_back(sum);
    }
  std::vector<int64_t> ends;
  for (int64_t band = 1; band < count; ++band) {
    const double share = sum * static_cast<double>(band) / static_cast<double>(count);
    const int64_t row = std::lower_bound(until.begin(), until.end(), share) - until.begin();
    const int64_t least = ends.empty() ? 1 : ends.back() + 1, most = rows - (count - band); // none is empty
    ends.push_back(std::clamp((row + kEqual / 2) / kEqual * kEqual, least, most));
  }
  ends.push_back(rows);
  return ends;
}

void cut_stages(const Context &ctx, const std::vector<bool> &leads, std::vector<Stage> &stages) {
  stages.clear();
  const std::vector<Instruction> &all = ctx.program.instructions;
  const auto wanted = [&](size_t n) { // whether an instruction has the wanted rows alone
    return ctx.program.buffer(all[n].writes.empty() ? all[n].reads[0] : all[n].writes[0]).wanted;
  };
  for (size_t n = 0; n < all.size(); ++n) {
    const Op &op = all[n].op();
    const int32_t at = static_cast<int32_t>(n), rows = static_cast<int32_t>(ctx.rows_of(all[n]).count);
    if (rows == 0) // of wanted ones there are none
      continue;
    const Unit unit = !ctx.bands.empty() && !wanted(n) ? Unit::kBand : op.tasks ? Unit::kTask : Unit::kRow;
    if (unit == Unit::kRow && rows == 1 && leads[n] && ctx.rows_of(all[n + 1]).count == 1 && (!op.leads_now || op.leads_now(ctx, all[n + 1]))) {
      const Instruction &next = all[++n];
      stages.push_back({at, at + 2, static_cast<int32_t>(next.op().tasks(ctx, next)), Unit::kTask});
    } else if (unit != Unit::kTask && !stages.empty() && stages.back().unit == unit && stages.back().last == at && !op.sees_other_rows &&
               wanted(n - 1) == wanted(n)) {
      ++stages.back().last;
    } else {
      const int64_t units = unit == Unit::kBand ? static_cast<int64_t>(ctx.bands.size())
                            : unit == Unit::kTask ? op.tasks(ctx, all[n]) : rows;
      stages.push_back({at, at + 1, static_cast<int32_t>(units), unit});
    }
  }
}

} // namespace dsedge
