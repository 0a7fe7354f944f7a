#include "weights.hpp"

#include "half.hpp"

#include <cstring>
#include <numeric>
#include <stdexcept>

namespace dsedge {

namespace {

constexpr int64_t kMost = int64_t{1} << 31; // of rows and columns

bool known(const MatrixShape &s) {
  if (s.kind == Kind::kRaw)
    return s.bits == 16 || s.bits == 32;
  if (s.bits == 8)
    return s.kind == Kind::kSym && s.group == 32;
  const bool kind = s.kind == Kind::kSym || s.kind == Kind::kZp || s.kind == Kind::kAffine;
  return s.bits == 4 && kind && (s.group == 32 || s.group == 64 || s.group == 128);
}

// Moves the two bytes of x apart.
uint32_t spread(uint64_t x) { return static_cast<uint32_t>((x & 0xff) | (x & 0xff00) << 8); }

// Sixteen bytes of a row, 32 columns, become four words with columns 0…15 in the low nibbles and 16…31 in the high.
void pack_nibbles(const uint8_t *source, uint8_t *lines) {
  constexpr uint64_t kLow = 0x0f0f0f0f0f0f0f0f;
  uint64_t a, b;
  std::memcpy(&a, source, 8);
  std::memcpy(&b, source + 8, 8);
  const uint64_t even = (a & kLow) | (b & kLow) << 4, odd = (a >> 4 & kLow) | (b & ~kLow);
  for (int line = 0; line < 4; ++line) {
    const uint32_t word = spread(even >> 16 * line) | spread(odd >> 16 * line) << 8;
    std::memcpy(lines + line * 64, &word, 4);
  }
}

void pack_group(const Matrix &m, const SourceRows &rows, int64_t index, int64_t group, uint8_t *to, int row) {
  const int half = row / 16, lane = row % 16;
  const int64_t bytes = m.group * m.bits / 8; // of a row's codes
  const uint8_t *codes = rows.codes + (index * m.groups + group) * bytes;
  for (int64_t block = 0; block < m.group / kBlock; ++block) {
    uint8_t *run = to + (block * 2 + half) * m.bits * 64 + lane * 4;
    if (m.bits == 4)
      pack_nibbles(codes + block * 16, run);
    else
      for (int line = 0; line < 8; ++line)
        std::memcpy(run + line * 64, codes + block * 32 + line * 4, 4);
  }
  std::memcpy(to + m.scales_at + row * 2, rows.scales + index * m.groups + group, 2);
  if (m.kind == Kind::kZp)
    to[m.extra_at + row] = rows.extra[index * ((m.groups + 1) / 2) + group / 2] >> (group % 2 * 4) & 15;
  if (m.kind == Kind::kAffine)
    std::memcpy(to + m.extra_at + row * 2, rows.extra + (index * m.groups + group) * 2, 2);
}

} // namespace

int64_t panels_of(int64_t rows) { return (rows + kPanel - 1) / kPanel; }

Matrix lay_out(const MatrixShape &shape) {
  if (!known(shape))
    throw std::invalid_argument("no such scheme: " + std::to_string(shape.bits) + " bits in groups of " +
                                std::to_string(shape.group));
  if (shape.columns < 1 || shape.columns >= kMost || shape.parts.empty() || shape.parts.size() > 8)
    throw std::invalid_argument("a matrix of " + std::to_string(shape.columns) + " columns in " +
                                std::to_string(shape.parts.size()) + " parts is not possible");
  Matrix m;
  for (int64_t rows : shape.parts) {
    if (rows < 1 || rows >= kMost || (shape.interleaved && rows != shape.parts[0]))
      throw std::invalid_argument("a part of " + std::to_string(rows) + " rows is not possible");
    m.panels += panels_of(rows);
  }
  m.bits = shape.bits;
  m.group = shape.group;
  m.kind = shape.kind;
  m.columns = shape.columns;
  if (m.kind == Kind::kRaw) {
    m.panel_bytes = m.columns * kPanel * m.bits / 8;
    return m;
  }
  m.groups = (m.columns + m.group - 1) / m.group;
  m.scales_at = int64_t{m.group} * kPanel * m.bits / 8;
  m.extra_at = m.scales_at + kPanel * 2;
  m.group_bytes = m.extra_at + (m.kind == Kind::kSym ? 0 : kPanel * 2); // zero points are padded: lines stay aligned
  m.panel_bytes = m.groups * m.group_bytes;
  return m;
}

RowBytes row_bytes(const Matrix &m) {
  if (m.kind == Kind::kRaw)
    return {m.columns * m.bits / 8, 0, 0};
  const int64_t extra = m.kind == Kind::kZp ? (m.groups + 1) / 2 : m.kind == Kind::kAffine ? m.groups * 2 : 0;
  return {m.groups * m.group * m.bits / 8, m.groups * 2, extra};
}

void pack(const Matrix &m, const MatrixShape &shape, int32_t part, const SourceRows &rows) {
  const auto first = shape.parts.begin();
  const int64_t stride = shape.interleaved ? static_cast<int64_t>(shape.parts.size()) : 1;
  const int64_t base = shape.interleaved ? part
                                         : std::accumulate(first, first + part, int64_t{0}, [](int64_t sum, int64_t n) {
                                             return sum + panels_of(n);
                                           });
  const int64_t each = row_bytes(m).codes;
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t row = rows.first + i;
    uint8_t *panel = m.data + (base + row / kPanel * stride) * m.panel_bytes;
    const int lane = static_cast<int>(row % kPanel);
    if (m.kind == Kind::kRaw) {
      const int64_t size = m.bits / 8;
      for (int64_t column = 0; column < m.columns; ++column)
        std::memcpy(panel + (column * kPanel + lane) * size, rows.codes + i * each + column * size,
                    static_cast<size_t>(size));
    } else {
      for (int64_t group = 0; group < m.groups; ++group)
        pack_group(m, rows, i, group, panel + group * m.group_bytes, lane);
    }
  }
}

void read_row(const Matrix &m, int64_t row, float scale, float *out) {
  const uint8_t *panel = m.data + row / kPanel * m.panel_bytes;
  const int lane = static_cast<int>(row % kPanel);
  const auto half_at = [](const uint8_t *base, int64_t index) {
    uint16_t half;
    std::memcpy(&half, base + index * 2, 2);
    return half_to_float(half);
  };
  for (int64_t column = 0; column < m.columns; ++column) {
    if (m.kind == Kind::kRaw) {
      const int64_t at = column * kPanel + lane;
      float value = 0;
      if (m.bits == 32)
        std::memcpy(&value, panel + at * 4, 4);
      out[column] = scale * (m.bits == 16 ? half_at(panel, at) : value);
      continue;
    }
    const uint8_t *group = panel + column / m.group * m.group_bytes;
    const int64_t line = column % kBlock / 4;
    const uint8_t *run = group + (column % m.group / kBlock * 2 + lane / 16) * m.bits * 64;
    const uint8_t byte = run[line % m.bits * 64 + lane % 16 * 4 + column % 4];
    const int code = m.bits == 8 ? byte : line < 4 ? byte & 15 : byte >> 4;
    const float step = half_at(group + m.scales_at, lane);
    float shift = -step * static_cast<float>(m.bits == 8 ? 128 : 8);
    if (m.kind == Kind::kZp)
      shift = -step * static_cast<float>(group[m.extra_at + lane]);
    if (m.kind == Kind::kAffine)
      shift = half_at(group + m.extra_at, lane);
    out[column] = scale * (step * static_cast<float>(code) + shift);
  }
}

} // namespace dsedge
