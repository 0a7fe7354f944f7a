#include "formats/formats.hpp"

#include "simd/half.hpp"

#include <cstring>
#include <numeric>
#include <stdexcept>

namespace dsedge {

namespace {

#include "simd/portable.hpp"

#include "simd/lanes.hpp"

#include "formats/table.hpp"

constexpr int64_t kMost = int64_t{1} << 31; // of rows and columns
constexpr size_t kMostParts = 4096;         // two for each expert of a layer

template <typename F> constexpr Format record() {
  return {F::kName, F::kBits, F::kCodes, F::kExtra, F::row_extra, F::pack};
}

template <typename... F> struct Table;
template <typename... F> struct Table<List<F...>> {
  static constexpr Format kRecords[] = {record<F>()...};
};
constexpr auto &kFormats = Table<Formats>::kRecords;

// Groups of 4-bit codes are of 32, 64 or 128 columns, those of 8-bit codes of 32.
bool has_group(const Format &f, int32_t group) {
  if (!f.codes)
    return group == 0;
  return group == 32 || (f.bits == 4 && (group == 64 || group == 128));
}

} // namespace

int32_t find_format(const std::string &name) {
  for (size_t i = 0; i < std::size(kFormats); ++i)
    if (name == kFormats[i].name)
      return static_cast<int32_t>(i);
  throw std::invalid_argument("program: no such weight format: " + name);
}

const Format &format_of(int32_t format) { return kFormats[static_cast<size_t>(format)]; }

int64_t panels_of(int64_t rows) { return (rows + kPanel - 1) / kPanel; }

Matrix lay_out(const MatrixShape &shape) {
  const Format &f = format_of(shape.format);
  if (!has_group(f, shape.group))
    throw std::invalid_argument(std::string("no such scheme: ") + f.name + " in groups of " + std::to_string(shape.group));
  if (shape.columns < 1 || shape.columns >= kMost || shape.rows.empty() || shape.rows.size() > kMostParts)
    throw std::invalid_argument("a matrix of " + std::to_string(shape.columns) + " columns in " +
                                std::to_string(shape.rows.size()) + " parts is not possible");
  Matrix m;
  for (int64_t rows : shape.rows) {
    if (rows < 1 || rows >= kMost || (shape.interleaved && rows != shape.rows[0]))
      throw std::invalid_argument("a part of " + std::to_string(rows) + " rows is not possible");
    m.panels += panels_of(rows);
  }
  m.format = shape.format;
  m.group = shape.group;
  m.columns = shape.columns;
  if (!f.codes) {
    m.panel_bytes = m.columns * kPanel * f.bits / 8;
    return m;
  }
  m.groups = (m.columns + m.group - 1) / m.group;
  m.scales_at = int64_t{m.group} * kPanel * f.bits / 8;
  m.extra_at = m.scales_at + kPanel * 2;
  m.group_bytes = m.extra_at + f.group_extra;
  m.panel_bytes = m.groups * m.group_bytes;
  return m;
}

RowBytes row_bytes(const Matrix &m) {
  const Format &f = format_of(m.format);
  if (!f.codes)
    return {m.columns * f.bits / 8, 0, 0};
  return {m.groups * m.group * f.bits / 8, m.groups * 2, f.row_extra(m.groups)};
}

void pack(const Matrix &m, const MatrixShape &shape, int32_t part, const SourceRows &rows) {
  const auto first = shape.rows.begin();
  const int64_t stride = shape.interleaved ? static_cast<int64_t>(shape.rows.size()) : 1;
  const int64_t base = shape.interleaved ? part
                                         : std::accumulate(first, first + part, int64_t{0}, [](int64_t sum, int64_t n) {
                                             return sum + panels_of(n);
                                           });
  const Format &f = format_of(m.format);
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t row = rows.first + i;
    f.pack(m, rows, i, m.data + (base + row / kPanel * stride) * m.panel_bytes, static_cast<int>(row % kPanel));
  }
}

} // namespace dsedge
