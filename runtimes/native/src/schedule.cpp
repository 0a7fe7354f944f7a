#include "schedule.hpp"

#include <algorithm>

namespace dsedge {

namespace {

constexpr int64_t kLeastBlock = 48, kMostBlock = 256; // rows, if all are as much work
constexpr int64_t kEqual = 4;                         // blocks end at a multiple, for the tiles of products

// A block's activations, which are to stay in the caches of its core: a matter of some MiB.
constexpr int64_t kMostBytes = int64_t{4} << 20;

int64_t row_bytes(const Program &program) {
  int64_t bytes = 0;
  for (const Buffer &buffer : program.buffers)
    bytes += buffer.selected ? 0 : buffer.width * 4;
  for (const Buffer &codes : program.quantized)
    bytes += codes.selected ? 0 : codes.width;
  return bytes;
}

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
      const size_t ring = program.kv.ring_of(i.layer);
      products.position[ring] += 2.0 * i.heads * i.dim;
    }
  }
  return products;
}

bool writes(const Instruction &i, int32_t buffer) {
  if (i.op == Op::kLinear && !i.gated)
    return std::any_of(i.parts.begin(), i.parts.end(), [&](const Part &part) { return part.buffer == buffer; });
  const bool codes = i.op == Op::kQuantize || (i.op == Op::kLinear && i.quantized_out != kNone);
  return !codes && i.op != Op::kStore && i.op != Op::kRope && i.out == buffer;
}

// Whether an instruction after the one of that number reads a buffer before another writes it.
bool read_after(const Program &program, size_t number, int32_t buffer) {
  for (size_t n = number + 1; n < program.instructions.size(); ++n) {
    const Instruction &i = program.instructions[n]; // an operand that it has no use for is taken for one that it reads
    if (i.a == buffer || i.b == buffer || i.c == buffer)
      return true;
    if (writes(i, buffer))
      return false;
  }
  return false;
}

bool prepares(const Program &program, size_t number) {
  const Instruction &i = program.instructions[number], &next = program.instructions[number + 1];
  if (i.op == Op::kStore)
    return next.op == Op::kAttention && next.a == i.a && next.layer == i.layer && !read_after(program, number + 1, i.a) &&
           !read_after(program, number + 1, i.b);
  const bool norm = i.op == Op::kNorm;
  return (norm || i.op == Op::kQuantize) && i.quantized_out != kNone && next.op == Op::kLinear &&
         next.quantized == i.quantized_out && next.quantized_out != i.quantized_out && !writes(next, i.a) &&
         !(norm && (i.out == i.a || i.out == next.b || writes(next, i.out)));
}

} // namespace

std::vector<bool> find_preparing(const Program &program) {
  std::vector<bool> found(program.instructions.size());
  for (size_t n = 0; n + 1 < found.size(); ++n)
    found[n] = prepares(program, n);
  return found;
}

std::vector<int64_t> cut_rows(const Program &program, const std::vector<Segment> &segments, int64_t rows,
                              int32_t threads) {
  const int64_t count = threads * ((rows + kMostBlock * threads - 1) / (kMostBlock * threads));
  if (rows < kLeastBlock * threads || rows / count * row_bytes(program) > kMostBytes)
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
  for (int64_t block = 1; block < count; ++block) {
    const double share = sum * static_cast<double>(block) / static_cast<double>(count);
    const int64_t row = std::lower_bound(until.begin(), until.end(), share) - until.begin();
    const int64_t least = ends.empty() ? 1 : ends.back() + 1, most = rows - (count - block); // none is empty
    ends.push_back(std::clamp((row + kEqual / 2) / kEqual * kEqual, least, most));
  }
  ends.push_back(rows);
  return ends;
}

} // namespace dsedge
