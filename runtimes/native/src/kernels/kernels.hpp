// What the engine and the kernel sets agree on: plain data, and a table of functions per instruction set.
#pragma once

#include "formats/matrix.hpp"

#include <cstddef>
#include <cstdint>

namespace dsedge {

constexpr int kSpan = 256;          // positions whose softmax is computed by itself; spans begin at multiples
constexpr int kGroupedQueries = 192; // rows of an attention tile, if a token has no more heads than that
constexpr int kRowsAtOnce = 15;     // rows of a tile whose scores are in memory together
constexpr int kTile = 16;           // rows of activations that are multiplied with a panel together

// Quantized activations: x = scale * (hi + lo / 128), a scale for each block of 32. lo counts only where the block is
// flagged, and is unspecified elsewhere. hi and lo [rows, blocks * 32], the others [rows, blocks], blocks a multiple of 4.
// `sum` is the sum of a block's dequantized values, eight_hi and eight_lo are -8 times the sums of its hi and lo. They are
// one struct, so that writing a block touches one cache line for all of them.
struct Block {
  float scale, sum;
  int32_t eight_hi, eight_lo;
};
struct QuantRows {
  int8_t *hi = nullptr, *lo = nullptr;
  Block *block = nullptr;
  uint8_t *flag = nullptr;
  int64_t blocks = 0;

  QuantRows from(int64_t row) const { return after(row * blocks); }
  // The same rows without the first `count` blocks of each.
  QuantRows after(int64_t count) const {
    return {hi + count * kBlock, lo + count * kBlock, block + count, flag + count, blocks};
  }
};

// How many codes a row of `width` numbers has: it ends with a whole group of any size, and with zeros.
constexpr int64_t padded_codes(int64_t width) { return (width + kMostGroup - 1) / kMostGroup * kMostGroup; }

constexpr int64_t tiles_of(int64_t rows) { return (rows + kTile - 1) / kTile; }

// Numbers or slots in whole lines of 16 lanes.
constexpr int64_t whole_lines(int64_t n) { return (n + 15) / 16 * 16; }

// Consecutive positions that lie in consecutive slots.
struct Piece {
  int64_t position, slot, count;
};

// How keys and values are kept: numbers, or bytes with 128 as zero and a scale for each slot's key and value.
enum class KvFormat : int32_t { kFloat32, kFloat16, kInt8 };

// The keys and values of one kv head. Keys [slots / 16][key_dim][16], values [slots][padded value_dim]; scales [slots], of
// kInt8. A slot's scales depend on its own key and value alone, so what is kept does not depend on what came before.
struct KvHead {
  void *keys, *values;
  uint16_t *key_scales, *value_scales; // float16
  int32_t key_dim, value_dim;
  int32_t query_stride, padded; // key_dim and value_dim in whole lines of 16: a query of a tile, a row of values
  KvFormat format;
};

// One tile of attention: queries of several tokens and heads, one row each, over the positions of some pieces.
struct AttentionTile {
  KvHead kv;
  const Piece *pieces;
  int64_t piece_count;
  int64_t first_span, last_span; // spans to visit, inclusive
  const int64_t *position;       // of each row, ascending
  float *queries;                // [rows][padded key_dim]; may be overwritten
  float *scores;                 // room for [kRowsAtOnce][kSpan]
  float *converted;              // room for the keys and values of a span: kSpan * (padded key_dim + padded value_dim)
  int32_t rows;
  int64_t window, sinks;
  float scale, softcap; // softcap 0: none
  // [rows][value_dim], whose products with the values are added to those of queries and keys; or nullptr.
  const float *latent_queries = nullptr;
};

// The running softmax of a tile. maximum and total [rows], mix [rows][padded value_dim].
struct Softmax {
  float *maximum, *total, *mix;
};

// The products of one weight format.
struct LinearKernels {
  // out [tokens][32] = the rows of a panel times quantized activations, whose flagged blocks are [tiles][blocks]: bit t of
  // a number is for row t of the tile. nullptr for a format of floats.
  void (*panel)(const Run &, int64_t panel, const QuantRows &, const uint32_t *flagged, int64_t tokens, float *out);
  // The same from float activations x [tokens][stride], for any format. `scratch` has room for the panel as floats.
  void (*panel_float)(const Run &, int64_t panel, const float *x, int64_t stride, int64_t tokens, float *scratch,
                      float *out);
  // Row `row` of the panels of a run as floats, times `scale`.
  void (*read_row)(const Run &, int64_t row, float scale, float *out);
};

struct Kernels {
  const char *name;
  const LinearKernels *linear; // by format
  // One row of a quantized buffer. A block is flagged where its largest value is over `crest` times its RMS.
  void (*quantize)(const float *x, int64_t width, float crest, const QuantRows &, int64_t row);
  // Block `block` of all `rows`, from x [rows][32].
  void (*quantize_block)(const float *x, int64_t rows, float crest, const QuantRows &, int64_t block);
  // RMS norm of `heads` pieces of `dim` numbers.
  void (*norm)(const float *x, const float *weight, int64_t heads, int64_t dim, float eps, float *out);
  void (*gate)(const float *gate, const float *up, int64_t count, int32_t activation, float *out);
  void (*softcap)(const float *x, int64_t count, float cap, float *out);
  // Rotates the pairs (i, i + rotary / 2) of each head in place.
  void (*rope)(float *x, int64_t heads, int64_t dim, int64_t rotary, const float *cos, const float *sin);
  // Without a `value` the slot keeps the one it has. False: a number is not finite, or not in the format's range.
  bool (*write_row)(const KvHead &, int64_t slot, const float *key, const float *value);
  // Attends the spans of a tile, one after another. With `stride` 0 their softmaxes are merged into `state`; otherwise
  // span n writes its own to `partial`, n times `stride` floats further. The maximum of a softmax is of scores times log2(e).
  void (*attend)(const AttentionTile &, Softmax partial, int64_t stride, const Softmax &state);
  // Adds to out [tokens][stride], a token having `group` rows of the tile, how much of its attention each row pays to each
  // position of the pieces, one after another; `state` is the softmax of all of them.
  void (*tell_attention)(const AttentionTile &, const Softmax &state, int64_t group, float *out, int64_t stride);
  void (*merge)(const Softmax &partial, const Softmax &state, int64_t rows, int64_t padded);
  // Of a row of logits; see kernels/logits.hpp.
  float (*largest)(const float *x, int64_t count);
  double (*exponential_sum)(const float *x, int64_t count, float top, float inverse);
  int64_t (*at_least)(const float *x, int64_t count, float least, int32_t *ids);
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
