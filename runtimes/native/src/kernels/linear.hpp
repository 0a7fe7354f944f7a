// Panels of 32 rows times quantized activations. A tile of tokens is multiplied together, block after block of columns: a
// block's codes are unpacked once for all of them. A result does not depend on how many tokens are computed together, since
// every instance adds up the blocks of a row in the same order with the same operations.
#pragma once

struct Floats32 { // a number for each row of a panel
  Floats v[2];
};

template <int kBits> struct Bits {};

// Whether codes are multiplied as 16-bit numbers, for a set without fast sums of products of bytes that large.
template <int kBits> constexpr bool kWide = kBits == 8 && kWideCodes;
// A block has so many lines, each of 64 bytes for a half of the panel's rows: 4 columns as bytes, or 2 in 16 bits, at first
// all even ones of fours.
template <int kBits> constexpr int kLines = kWide<kBits> ? 16 : 8;
constexpr int64_t kLargestBlock = 2 * 16 * 64; // bytes of unpacked codes

constexpr int64_t kAhead = 4096; // bytes: how far ahead weights are prefetched
inline void fetch_ahead(const uint8_t *group, int64_t bytes) {
  for (int64_t i = 0; i < bytes; i += 64)
    __builtin_prefetch(group + kAhead + i);
}

// Line n of a half's rows, of codes as they lie in the panel or unpacked.
template <int kBits, bool kPacked> inline Bytes line_of(const uint8_t *codes, int half, int n) {
  constexpr int kEach = kPacked ? kBits : kLines<kBits>; // lines of a half
  const Bytes bytes = load_bytes(codes + (half * kEach + n % kEach) * 64);
  if constexpr (kPacked && kBits == 4)
    return n < 4 ? low_nibbles(bytes) : high_nibbles(bytes);
  else if constexpr (kPacked && kWide<kBits>)
    return n < 8 ? even_bytes(bytes) : odd_bytes(bytes);
  else
    return bytes;
}

// Whether codes are multiplied as they lie in the panel, however many tokens there are.
template <int kBits> constexpr bool kAsStored = kBits == 8 && !kWide<kBits> && !kMatrixDots;

// Unpacks a block. For matrix products each two lines are made tiles.
template <int kBits> inline void unpack_block(const uint8_t *codes, uint8_t *out) {
  if constexpr (kMatrixDots && kBits == 8) {
    native_tiles(Bits<kBits>{}, codes, out);
    native_tiles(Bits<kBits>{}, codes + 512, out + 512);
  } else {
#pragma GCC unroll 2
    for (int half = 0; half < 2; ++half, out += kLines<kBits> * 64) {
#pragma GCC unroll 16
      for (int i = 0; i < kLines<kBits>; ++i) {
        const int n = i / 2 + i % 2 * (kLines<kBits> / 2);
        store_bytes(out + n * 64, line_of<kBits, true>(codes, half, n));
      }
      if constexpr (kMatrixDots)
        native_tiles(Bits<kBits>{}, out, out);
    }
  }
}

// Scales and zero points of as many halves as are multiplied together, and their sums.
using HalvesData = GroupData[kHalves];
struct Sums {
  Ints v[kHalves];
};

// The products of a block's codes, in halves `first` …, with the 32 activations of each of kCount tokens. A line is loaded
// once for all tokens. A token alone has two independent sums, which hide the latency.
template <typename F, bool kPacked, int kCount>
inline void multiply_block(const HalvesData &data, const uint8_t *codes, int first, const int8_t *const (&x)[kCount],
                           const int32_t (&eights)[kCount], Sums (&sums)[kCount]) {
  constexpr int kBits = F::kBits, kChains = kCount == 1 && !kShortSums<kBits> ? 2 : 1;
  Sums chains[kCount * kChains];
#pragma GCC unroll 8
  for (int t = 0; t < kCount * kChains; ++t)
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h)
      chains[t].v[h] = kShortSums<kBits> || t % kChains ? splat_int(0) : F::start(data[h], eights[t / kChains]);
#pragma GCC unroll 16
  for (int i = 0; i < kLines<kBits>; ++i) {
    const int n = i / 2 + i % 2 * (kLines<kBits> / 2); // what lies in the same bytes together
    Bytes line[kHalves];
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h)
      line[h] = line_of<kBits, kPacked>(codes, first + h, n);
#pragma GCC unroll 8
    for (int t = 0; t < kCount; ++t) {
      int32_t quad;
      __builtin_memcpy(&quad, x[t] + n * 4, 4);
#pragma GCC unroll 2
      for (int h = 0; h < kHalves; ++h) {
        Ints &sum = chains[t * kChains + i % kChains].v[h];
        sum = dot<kBits>(sum, line[h], quad);
      }
    }
  }
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t)
#pragma GCC unroll 2
    for (int h = 0; h < kHalves; ++h) {
      const Ints &sum = chains[t * kChains].v[h];
      if constexpr (kShortSums<kBits>)
        sums[t].v[h] = add(widen_sums(sum), F::start(data[h], eights[t]));
      else
        sums[t].v[h] = kChains == 1 ? sum : add(sum, chains[t * kChains + kChains - 1].v[h]);
    }
}

// The same for two tokens by matrix products, from tiles of codes. Sums of integers are exact in any order.
template <typename F>
inline void multiply_tiles(const HalvesData &data, const uint8_t *tiles, int first, const int8_t *const (&x)[2],
                           const int32_t (&eights)[2], Sums (&sums)[2]) {
  for (int h = 0; h < kHalves; ++h) {
    native_tile_dots(Bits<F::kBits>{}, tiles + (first + h) * 512, x[0], x[1], sums[0].v[h].v, sums[1].v[h].v);
    for (int t = 0; t < 2; ++t)
      sums[t].v[h] = add(sums[t].v[h], F::start(data[h], eights[t]));
  }
}

// Adds a block's products, whose activations have that scale, to the sums of a token.
inline void add_scaled(Floats32 &total, int first, const Sums &products, const HalvesData &data, float scale) {
#pragma GCC unroll 2
  for (int h = 0; h < kHalves; ++h)
    total.v[first + h] = fma(to_float(products.v[h]), mul(data[h].scales, splat(scale)), total.v[first + h]);
}

// A block of columns for the tokens of a tile, as kernels read it: those of the next token are `stride` further.
struct Tile {
  const int8_t *hi, *lo;
  const Block *block;
  int64_t stride; // in blocks
  uint32_t flagged;
  const int16_t (*wide)[kBlock]; // where codes are multiplied as 16-bit numbers: the block of each token as such

  bool is_flagged(int64_t token) const { return flagged >> token & 1; }
  const int8_t *hi_of(int64_t token) const { return hi + token * stride * kBlock; }
  const int8_t *lo_of(int64_t token) const { return lo + token * stride * kBlock; }
  const Block &block_of(int64_t token) const { return block[token * stride]; }
};

// Adds the products of a block with tokens from … from + kCount - 1 to their sums. Where codes have 8 bits, those of both
// parts of a flagged block are one sum of integers; where they have 4, its lo part is added behind (add_low).
template <typename F, bool kPacked, int kCount>
inline void add_tokens(const HalvesData &data, const uint8_t *codes, int half, const Tile &x, int64_t from, Floats32 *total) {
  const int8_t *hi[kCount], *lo[kCount];
  int32_t eights[kCount], low_eights[kCount];
  Sums sums[kCount];
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t) {
    const Block &block = x.block_of(from + t);
    const bool both = kWide<F::kBits> && x.is_flagged(from + t);
    hi[t] = kWide<F::kBits> ? (const int8_t *)x.wide[from + t] : x.hi_of(from + t);
    lo[t] = x.lo_of(from + t);
    eights[t] = both ? block.eight_hi * 128 + block.eight_lo : block.eight_hi;
    low_eights[t] = block.eight_lo;
  }
  const auto multiply = [&](const int8_t *const(&with)[kCount], const int32_t(&start)[kCount], Sums(&out)[kCount])
                            __attribute__((always_inline)) {
    if constexpr (kMatrixDots && kCount == 2 && !kPacked)
      multiply_tiles<F>(data, codes, half, with, start, out);
    else
      multiply_block<F, kPacked, kCount>(data, codes, half, with, start, out);
  };
  multiply(hi, eights, sums);
  if constexpr (F::kBits == 8 && !kWide<F::kBits>)
    if (x.flagged >> from & ((1u << kCount) - 1)) {
      Sums lows[kCount];
      multiply(lo, low_eights, lows);
#pragma GCC unroll 8
      for (int t = 0; t < kCount; ++t) {
        if (!x.is_flagged(from + t))
          continue;
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h)
          sums[t].v[h] = add(times_128(sums[t].v[h]), lows[t].v[h]);
      }
    }
#pragma GCC unroll 8
  for (int t = 0; t < kCount; ++t) {
    const Block &block = x.block_of(from + t);
    const bool both = F::kBits == 8 && x.is_flagged(from + t);
    add_scaled(total[from + t], half, sums[t], data, both ? block.scale * (1.0f / 128) : block.scale);
#pragma GCC unroll 2
    for (int h = 0; h < kHalves && F::kOffsets; ++h) {
      Floats &sum = total[from + t].v[half + h];
      sum = fma(data[h].offsets, splat(block.sum), sum);
    }
  }
}

// Adds the lo parts of flagged blocks of 4-bit codes: few are.
template <typename F, bool kPacked>
inline void add_low(const HalvesData &data, const uint8_t *codes, int half, const Tile &x, Floats32 *total) {
  if (kPacked)
    asm("" : "+r"(codes)); // else compilers keep a block's unpacked codes, in case that its lo part needs them too
  for (uint32_t left = x.flagged; left; left &= left - 1) {
    const int t = __builtin_ctz(left);
    const Block &block = x.block_of(t);
    Sums sums[1];
    multiply_block<F, kPacked, 1>(data, codes, half, {x.lo_of(t)}, {block.eight_lo}, sums);
    add_scaled(total[t], half, sums[0], data, block.scale * (1.0f / 128));
  }
}

// Tokens from … from + count - 1, fewer than kMost + 1.
template <typename F, bool kPacked, int kMost>
inline void add_few(const HalvesData &data, const uint8_t *codes, int half, const Tile &x, int64_t from, int64_t count,
                    Floats32 *total) {
  if constexpr (kMost > 0) {
    if (count == kMost)
      add_tokens<F, kPacked, kMost>(data, codes, half, x, from, total);
    else
      add_few<F, kPacked, kMost - 1>(data, codes, half, x, from, count, total);
  }
}

// A block's products with all tokens of a tile, from the panel's codes or, if not kPacked, from `unpacked`; matrix products
// leave tokens that have no other beside them, and lo parts, to the panel's.
template <typename F, bool kPacked>
inline void add_block(const HalvesData &data, const uint8_t *packed, const uint8_t *unpacked, int half, const Tile &x,
                      int64_t count, Floats32 *total) {
  constexpr bool kAlone = kPacked || kMatrixDots;
  const uint8_t *alone = kAlone ? packed : unpacked;
  int64_t t = 0;
  for (; t + kTokens <= count; t += kTokens)
    add_tokens<F, kPacked, kTokens>(data, kPacked ? packed : unpacked, half, x, t, total);
  add_few<F, kAlone, kTokens - 1>(data, alone, half, x, t, count - t, total);
  if (F::kBits == 4 && x.flagged) [[unlikely]]
    add_low<F, kAlone>(data, alone, half, x, total);
}

// How a tile is computed: one token, codes read from the panel for each kTokens, or unpacked to memory for all of them.
enum class Way { kOne, kPacked, kUnpacked };

template <typename F, Way kWay>
inline void panel_tile(const Run &run, const uint8_t *panel, const QuantRows &rows, const uint32_t *flagged, int64_t count,
                       float *out) {
  constexpr bool kOne = kWay == Way::kOne, kUnpacks = kWay == Way::kUnpacked;
  if (kOne)
    count = 1;
  Floats32 total[kOne ? 1 : kTile];
  for (int64_t t = 0; t < count; ++t)
    total[t] = {{splat(0), splat(0)}};
  alignas(64) uint8_t unpacked[kUnpacks ? kLargestBlock : 1];
  int16_t wide[kWide<F::kBits> ? (kOne ? 1 : kTile) : 1][kBlock];
  Tile x{rows.hi, rows.lo, rows.block, rows.blocks, 0, wide};
  for (const uint8_t *group = panel, *end = panel + run.groups * run.group_bytes; group < end; group += run.group_bytes) {
    fetch_ahead(group, run.group_bytes);
    const uint8_t *codes = group;
    for (int32_t column = 0; column < run.group; column += kBlock, codes += F::kBits * 128) {
      x.flagged = *flagged++;
      if constexpr (kUnpacks)
        unpack_block<F::kBits>(codes, unpacked);
      if constexpr (kWide<F::kBits>)
        for (int64_t t = 0; t < count; ++t) // hi, or 128 · hi + lo
          native_widen_block(Bits<F::kBits>{}, x.hi_of(t), x.is_flagged(t) ? x.lo_of(t) : nullptr, wide[t]);
#pragma GCC unroll 2
      for (int half = 0; half < 2; half += kHalves) {
        HalvesData data;
#pragma GCC unroll 2
        for (int h = 0; h < kHalves; ++h)
          data[h] = F::load(run, group, half + h);
        if constexpr (kOne) {
          add_tokens<F, true, 1>(data, codes, half, x, 0, total);
          if (F::kBits == 4 && x.flagged) [[unlikely]]
            add_low<F, true>(data, codes, half, x, total);
        } else {
          add_block<F, !kUnpacks>(data, codes, unpacked, half, x, count, total);
        }
      }
      x.hi += kBlock;
      x.lo += kBlock;
      ++x.block;
    }
  }
  for (int64_t t = 0; t < count; ++t)
    for (int half = 0; half < 2; ++half)
      store(out + t * kPanel + half * 16, total[t].v[half]);
}

template <typename F>
inline void panel(const Run &run, int64_t index, const QuantRows &x, const uint32_t *flagged, int64_t tokens, float *out) {
  const uint8_t *panel = run.data + index * run.stride;
  for (int64_t t = 0; t < tokens; t += kTile, flagged += x.blocks) {
    const int64_t count = smaller(kTile, tokens - t);
    if (count == 1)
      panel_tile<F, Way::kOne>(run, panel, x.from(t), flagged, count, out + t * kPanel);
    else if (kAsStored<F::kBits> || count < kUnpackFrom)
      panel_tile<F, Way::kPacked>(run, panel, x.from(t), flagged, count, out + t * kPanel);
    else
      panel_tile<F, Way::kUnpacked>(run, panel, x.from(t), flagged, count, out + t * kPanel);
  }
}
