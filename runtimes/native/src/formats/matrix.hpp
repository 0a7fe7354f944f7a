// Weights as the engine keeps them: packed into panels of 32 rows. Plain data, which kernel sets and engine share.
#pragma once

#include <cstdint>

namespace dsedge {

constexpr int kBlock = 32;      // columns that share an activation scale
constexpr int kPanel = 32;      // rows of a weight that are stored and computed together
constexpr int kMostGroup = 128; // columns that share a weight scale, at most

// Some rows and columns of a matrix in one format, packed: kernels know matrices as these alone. `format` is an index into
// kFormats. A format of codes stores a panel group after group of columns: the group's codes, then its 32 scales, then
// what else the format has, so that reading a panel is one stream. Codes go in blocks of 32 columns; a block has, for each
// of the two halves of 16 rows, a sequence of 64-byte lines, and a line has 4 columns of 16 rows. 8 bits: lines 0…7. 4 bits:
// byte i of line j holds line j in its low nibble and line j + 4 in its high one. A format of floats stores
// [columns][32 rows]; its `group` is 0. A row of a panel that does not belong to the run is 0.
struct Run {
  uint8_t *data = nullptr;
  int64_t panel_bytes = 0, stride = 0; // stride: from a panel to the next, in bytes
  int64_t group_bytes = 0, scales_at = 0, extra_at = 0; // extra_at, scales_at: within a group
  int64_t columns = 0, groups = 0;
  int32_t format = 0, group = 0;
  // Where it lies in its matrix, whose row 0 of panel p counts as row 32 · p.
  int64_t first_panel = 0, panels = 0, row = 0, rows = 0, column = 0;
};

// Some rows of a run as the payload stores them: codes or floats; scales [rows, groups]; extra: what else the format has,
// [rows, extra bytes of a row].
struct SourceRows {
  int64_t first, count;
  const uint8_t *codes;
  const uint16_t *scales;
  const uint8_t *extra;
};

// Bytes of one row in the payload.
struct RowBytes {
  int64_t codes, scales, extra;
};

} // namespace dsedge
