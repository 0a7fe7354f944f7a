#include "schedule.hpp"

#include <algorithm>

namespace dsedge {

namespace {

constexpr int64_t kLeastRows = 48, kMostRows = 256; // of a block
constexpr int64_t kEqual = 4;                       // blocks end at a multiple, for the tiles of products

// The products of a row, and those with each position that it sees, by ring.
struct Products {
  double row = 0;
  std::vector<double> position;
};

Products count_products(const Program &program) {
  Products products;
  products.position.resize(program.kv.rings.size());
  for (const Instruction &i : program.instructions) {
    if (i.op == Op::kLinear) {
      const MatrixShape &shape = program.matrices[static_cast<size_t>(i.matrix)];
      for (int64_t rows : shape.parts)
        products.row += static_cast<double>(rows) * static_cast<double>(shape.columns);
    } else if (i.op == Op::kAttention) {
      const size_t ring = static_cast<size_t>(program.kv.layers[static_cast<size_t>(i.layer)]);
      products.position[ring] += 2.0 * i.heads * i.dim;
    }
  }
  return products;
}

} // namespace

std::vector<int64_t> cut_rows(const Program &program, const std::vector<Segment> &segments, int64_t rows,
                              int32_t threads) {
  if (rows < kLeastRows * threads)
    return {};
  const int64_t count = threads * ((rows + kMostRows * threads - 1) / (kMostRows * threads));
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
  for (int64_t block = 1; block < count; ++block) {
    const double share = sum * static_cast<double>(block) / static_cast<double>(count);
    const int64_t row = std::lower_bound(until.begin(), until.end(), share) - until.begin();
    ends.push_back(std::clamp((row + kEqual / 2) / kEqual * kEqual, ends.empty() ? 1 : ends.back() + 1, rows - 1));
  }
  ends.push_back(rows);
  return ends;
}

} // namespace dsedge
