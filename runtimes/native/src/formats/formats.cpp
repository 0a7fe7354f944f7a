#include "formats/formats.hpp"

#include "simd/half.hpp"

#include <algorithm>
#include <stdexcept>

namespace dsedge {

namespace {

#include "simd/portable.hpp"

#include "simd/lanes.hpp"

#include "formats/table.hpp"

constexpr int64_t kMost = int64_t{1} << 31; // of rows and columns
constexpr size_t kMostWeights = 4096;       // one for each expert of a layer
constexpr size_t kMostRuns = 65536;

template <typename F> constexpr Format record() {
  return {F::kName, F::kBits, F::kCodes, F::kExtra, F::row_extra, F::pack};
}

template <typename... F> struct Table;
template <typename... F> struct Table<List<F...>> {
  static constexpr Format kRecords[] = {record<F>()...};
};
constexpr auto &kFormats = Table<Formats>::kRecords;

void require(bool fine, const std::string &message) {
  if (!fine)
    throw std::invalid_argument(message);
}

// Groups of 4-bit codes are of 32, 64 or 128 columns, those of 8-bit codes of 32.
bool has_group(const Format &f, int32_t group) {
  if (!f.codes)
    return group == 0;
  return group == 32 || (f.bits == 4 && (group == 64 || group == kMostGroup));
}

// Throws unless runs `first` … of a weight are all of it; the index behind the last of them.
size_t check_runs(const MatrixShape &shape, size_t weight, size_t first) {
  const int64_t rows = shape.rows[weight];
  int64_t row = 0, column = 0;
  size_t n = first;
  for (; n < shape.runs.size() && static_cast<size_t>(shape.runs[n].weight) == weight; ++n) {
    const RunShape &run = shape.runs[n];
    const bool by_columns = run.rows == rows;
    require(run.row == row && run.column == column && run.rows > 0 && run.columns > 0 && run.rows <= rows - row &&
                run.columns <= shape.columns - column && (by_columns || run.columns == shape.columns),
            "a run that does not follow the one before");
    (by_columns ? column : row) += by_columns ? run.columns : run.rows;
  }
  require(row == rows || column == shape.columns, "a weight that is not all in runs");
  return n;
}

// The run of a weight whose first panel is `base`.
Run lay_out(const RunShape &shape, int64_t base) {
  const Format &f = format_of(shape.format);
  require(has_group(f, shape.group), std::string("no such scheme: ") + f.name + " in groups of " + std::to_string(shape.group));
  Run run;
  run.format = shape.format;
  run.group = shape.group;
  run.columns = shape.columns;
  run.column = shape.column;
  run.row = base * kPanel + shape.row;
  run.rows = shape.rows;
  run.first_panel = base + shape.row / kPanel;
  run.panels = panels_of(shape.row + shape.rows) - shape.row / kPanel;
  if (!f.codes) {
    run.panel_bytes = run.stride = run.columns * kPanel * f.bits / 8;
    return run;
  }
  run.groups = (run.columns + run.group - 1) / run.group;
  run.scales_at = int64_t{run.group} * kPanel * f.bits / 8;
  run.extra_at = run.scales_at + kPanel * 2;
  run.group_bytes = run.extra_at + f.group_extra;
  run.panel_bytes = run.stride = run.groups * run.group_bytes;
  return run;
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

std::span<const Run> Matrix::of_panel(int64_t panel) const {
  if (runs.size() == 1)
    return runs;
  const auto first =
      std::partition_point(runs.begin(), runs.end(), [&](const Run &run) { return run.first_panel + run.panels <= panel; });
  auto last = first;
  while (last != runs.end() && last->first_panel <= panel)
    ++last;
  return {first, last};
}

Matrix lay_out(const MatrixShape &shape) {
  require(shape.columns > 0 && shape.columns < kMost && !shape.rows.empty() && shape.rows.size() <= kMostWeights &&
              shape.runs.size() <= kMostRuns,
          "a matrix of " + std::to_string(shape.columns) + " columns, " + std::to_string(shape.rows.size()) +
              " weights and " + std::to_string(shape.runs.size()) + " runs is not possible");
  Matrix m;
  size_t done = 0;
  for (size_t weight = 0; weight < shape.rows.size(); ++weight) {
    const int64_t rows = shape.rows[weight];
    require(rows > 0 && rows < kMost, "a weight of " + std::to_string(rows) + " rows is not possible");
    for (const size_t end = check_runs(shape, weight, done); done < end; ++done)
      m.runs.push_back(lay_out(shape.runs[done], m.panels));
    m.panels += panels_of(rows);
  }
  require(done == shape.runs.size(), "a run of a weight that is not there");
  return m;
}

RowBytes row_bytes(const Run &run) {
  const Format &f = format_of(run.format);
  if (!f.codes)
    return {run.columns * f.bits / 8, 0, 0};
  return {run.groups * run.group * f.bits / 8, run.groups * 2, f.row_extra(run.groups)};
}

void pack(const Run &run, const SourceRows &rows) {
  const Format &f = format_of(run.format);
  for (int64_t i = 0; i < rows.count; ++i) {
    const int64_t row = run.row + rows.first + i;
    f.pack(run, rows, i, run.data + (row / kPanel - run.first_panel) * run.stride, static_cast<int>(row % kPanel));
  }
}

} // namespace dsedge
