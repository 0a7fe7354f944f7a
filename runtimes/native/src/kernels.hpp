// What the engine and the kernel sets agree on: plain data, and a table of functions per instruction set.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dsedge {

constexpr int kBlock = 32;          // columns that share an activation scale
constexpr int kPanel = 32;          // rows of a weight that are stored and computed together
constexpr int kSpan = 256;          // positions that attention sums up before it merges: aligned, so splits cannot matter
constexpr int kGroupedQueries = 192; // (query, head) rows of an attention tile, if a query has no more heads than that
constexpr int kRowsAtOnce = 15;     // rows of a tile whose scores are there together

enum class Kind : int32_t { kSym, kZp, kAffine, kRaw };

// A weight repacked into panels of 32 rows, a panel group after group of columns: the group's codes, then its 32
// scales, then its zero points or offsets, so that reading it is one stream. Codes go in blocks of 32 columns, for each
// of the two halves of 16 rows a run of 64-byte lines; a line has 4 columns of 16 rows. 8 bits: lines 0…7. 4 bits: byte
// i of line j holds line j in its low nibble, line j + 4 in its high one. Raw weights (bits 16 and 32) lie as
// [column][32 rows].
struct Matrix {
  uint8_t *data = nullptr;
  int64_t panels = 0, panel_bytes = 0;
  int64_t group_bytes = 0, scales_at = 0, extra_at = 0; // within a group
  int64_t columns = 0, groups = 0;
  int32_t bits = 0, group = 0;
  Kind kind = Kind::kSym;
};

// Quantized activations: x = scale * (hi + lo / 128), a scale for each block of 32. Blocks that are not flagged have no lo:
// what lies there is anything. hi and lo [rows, blocks * 32], the others [rows, blocks], blocks a multiple of 4. `sum` is
// that of a block's dequantized values, eight_hi and eight_lo are -8 times those of its hi and lo. They lie together, since
// a block is written by itself, a row at a time: each array more would be one more cache line to fetch.
struct Block {
  float scale, sum;
  int32_t eight_hi, eight_lo;
};
struct QuantRows {
  int8_t *hi = nullptr, *lo = nullptr;
  Block *block = nullptr;
  uint8_t *flag = nullptr;
  int64_t blocks = 0;

  QuantRows from(int64_t row) const {
    const int64_t at = row * blocks;
    return {hi + at * kBlock, lo + at * kBlock, block + at, flag + at, blocks};
  }
};

// The flagged blocks of quantized rows: rows[starts[b]] … rows[starts[b + 1] - 1] are those whose block b is flagged.
struct Flagged {
  int32_t *starts = nullptr, *rows = nullptr; // [blocks + 2], of which the last is used in the search; [rows * blocks]
};

// Numbers or slots in whole lines of 16 lanes.
constexpr int64_t whole_lines(int64_t n) { return (n + 15) / 16 * 16; }

// A run of positions that lie in neighbouring slots.
struct Piece {
  int64_t position, slot, count;
};

// How keys and values are kept: numbers, or bytes with 128 as zero and a scale for each slot's key and value.
enum class KvFormat : int32_t { kFloat32, kFloat16, kInt8 };

// The keys and values of one kv head. Keys [slots / 16][dim][16], values [slots][padded dim]; scales [slots], of kInt8.
// A row's scale depends on that row alone, so that what is kept never depends on what came before or with it.
struct HeadStore {
  void *keys, *values;
  uint16_t *key_scales, *value_scales; // float16
  int32_t dim, padded;                 // padded: dim rounded up to 16
  KvFormat format;
};

// One tile of attention: `rows` (query, head) pairs over the positions of some pieces. queries [rows][padded dim].
struct AttentionTile {
  HeadStore store;
  const Piece *pieces;
  int64_t piece_count;
  int64_t first_span, last_span; // spans to visit, inclusive
  const int64_t *position;       // of each row, ascending
  float *queries; // may be overwritten
  float *scores;    // room for [kRowsAtOnce][kSpan]
  float *converted; // room for the keys and values of a span, [2][kSpan][padded dim]
  int32_t rows;
  int64_t window, sinks;
  float scale, softcap; // softcap 0: none
};

// The running softmax of a tile. maximum and total [rows], mix [rows][padded dim].
struct Softmax {
  float *maximum, *total, *mix;
};

struct Kernels {
  const char *name;
  // out [tokens][32] = the rows of a panel times quantized activations; of one token `Flagged` is not looked at.
  // `scratch` holds the panel's codes as bytes.
  void (*panel)(const Matrix &, int64_t panel, const QuantRows &, const Flagged &, int64_t tokens, uint8_t *scratch,
                float *out);
  // The same from float activations x [tokens][stride], for raw weights and for verification. `scratch` holds floats.
  void (*panel_float)(const Matrix &, int64_t panel, const float *x, int64_t stride, int64_t tokens, float *scratch,
                      float *out);
  // One row of a quantized buffer. A block is flagged where its largest value is over `crest` times its RMS.
  void (*quantize)(const float *x, int64_t width, float crest, const QuantRows &, int64_t row);
  // Block `block` of all `rows`, from x [rows][32].
  void (*quantize_block)(const float *x, int64_t rows, float crest, const QuantRows &, int64_t block);
  // RMS norm of `heads` pieces of `dim` numbers.
  void (*norm)(const float *x, const float *weight, int64_t heads, int64_t dim, float eps, float *out);
  void (*gate)(const float *gate, const float *up, int64_t count, int32_t activation, float *out);
  void (*softcap)(const float *x, int64_t count, float cap, float *out);
  // Turns pairs (i, i + rotary / 2) of each head in place.
  void (*rope)(float *x, int64_t heads, int64_t dim, int64_t rotary, const float *cos, const float *sin);
  // Without a `value` the slot's stays. False: the format cannot hold a number, or it is not one.
  bool (*write_row)(const HeadStore &, int64_t slot, const float *key, const float *value);
  // Attends the spans of a tile, one after another. With `stride` 0 they are merged into `state`; otherwise each
  // leaves its own result for a later merge, the first in `part` and the others `stride` floats further each.
  // A state's maximum is of scores times log2(e).
  void (*attend)(const AttentionTile &, Softmax part, int64_t stride, const Softmax &state);
  void (*merge)(const Softmax &part, const Softmax &state, int64_t rows, int64_t padded);
};

const Kernels *portable_kernels();
const Kernels *avx2_kernels();
const Kernels *avxvnni_kernels();
const Kernels *avx512_kernels();
const Kernels *avx512bf16_kernels();
const Kernels *neon_kernels();
const Kernels *i8mm_kernels();

// The set of that name, or with "" the fastest that this processor runs. nullptr: unknown, or not usable here.
const Kernels *find_kernels(const char *name);

} // namespace dsedge
