// The Python side: turns arrays into the program and forwards into calls. Shapes are checked here, meaning in C++.
#include "engine.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include <memory>
#include <stdexcept>
#include <string>

#ifndef _WIN32
#include <unistd.h>
#endif

namespace nb = nanobind;

namespace {

using namespace dsedge;

template <typename T, int kDims> using Array = nb::ndarray<const T, nb::ndim<kDims>, nb::c_contig, nb::device::cpu>;
using Ints = Array<int32_t, 2>;
using Longs = Array<int64_t, 2>;
using Reals = Array<float, 2>;
using Results = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>; // written to: never a converted copy
// bits, group, kind, columns, rows of each part, interleaved
using ShapeTuple = std::tuple<int32_t, int32_t, int32_t, int64_t, std::vector<int64_t>, bool>;

void require(bool fine, const char *message) {
  if (!fine)
    throw std::invalid_argument(message);
}

constexpr size_t kFields = 17, kRealFields = 4;

std::vector<Instruction> instructions(const Ints &ints, const Reals &reals, const Ints &parts) {
  require(ints.shape(1) == kFields && reals.shape(1) == kRealFields && parts.shape(1) == 4 &&
              ints.shape(0) == reals.shape(0),
          "program: tables of another format");
  std::vector<Instruction> result;
  for (size_t n = 0; n < ints.shape(0); ++n) {
    const int32_t *f = ints.data() + n * kFields;
    const float *r = reals.data() + n * kRealFields;
    require(f[0] >= 0 && f[0] < kOps, "program: an unknown op");
    result.push_back({static_cast<Op>(f[0]), f[1], f[2], f[3], f[4], f[5], f[6], f[7], f[8], f[9], f[10], f[11], f[12],
                      f[13], f[14], f[15], f[16], r[0], r[1], r[2], r[3], {}});
  }
  for (size_t n = 0; n < parts.shape(0); ++n) {
    const int32_t *p = parts.data() + n * 4;
    require(p[0] >= 0 && static_cast<size_t>(p[0]) < result.size(), "program: a part of no instruction");
    result[static_cast<size_t>(p[0])].parts.push_back({p[1], p[2], p[3]});
  }
  return result;
}

std::vector<Buffer> buffers(const Longs &table) {
  require(table.shape(1) == 2, "program: tables of another format");
  std::vector<Buffer> result;
  for (size_t n = 0; n < table.shape(0); ++n)
    result.push_back({table.data()[n * 2], table.data()[n * 2 + 1] != 0});
  return result;
}

struct ProgramBuilder {
  Program program;

  ProgramBuilder(Ints ints, Reals reals, Ints parts, Longs floats, Longs quantized) {
    program.instructions = instructions(ints, reals, parts);
    program.buffers = buffers(floats);
    program.quantized = buffers(quantized);
  }
  void add_matrix(const ShapeTuple &shape) {
    const auto &[bits, group, kind, columns, parts, interleaved] = shape;
    require(kind >= 0 && kind <= static_cast<int32_t>(Kind::kRaw), "program: an unknown kind of matrix");
    program.matrices.push_back({bits, group, static_cast<Kind>(kind), columns, parts, interleaved});
  }
  void add_vector(Array<float, 1> values) {
    program.vectors.emplace_back(values.data(), values.data() + values.shape(0));
  }
  void add_rope(int64_t pairs) { program.ropes.push_back(pairs); }
  void add_ring(int64_t slots, int64_t window, int64_t sinks) { program.kv.rings.push_back({slots, window, sinks}); }
  void set_kv(int64_t sequences, int64_t chunk, int32_t kv_heads, int32_t dim, const std::vector<int32_t> &layers,
              const std::vector<int32_t> &formats) {
    program.kv.formats.clear();
    for (int32_t format : formats) {
      require(format >= 0 && format <= static_cast<int32_t>(KvFormat::kInt8), "program: an unknown format of the cache");
      program.kv.formats.push_back(static_cast<KvFormat>(format));
    }
    program.kv.sequences = sequences;
    program.kv.chunk = chunk;
    program.kv.kv_heads = kv_heads;
    program.kv.dim = dim;
    program.kv.layers = layers;
  }
};

int64_t process() {
#ifdef _WIN32
  return 0; // has no fork
#else
  return getpid();
#endif
}

// The engine as Python has it. A forked process never ends it: it has none of the threads, and joining them would wait
// for ever where the C library does not notice that (musl; glibc does).
struct Opened {
  std::unique_ptr<Engine> engine;
  int64_t owner = process();

  explicit Opened(std::unique_ptr<Engine> opened) : engine(std::move(opened)) {}
  ~Opened() {
    if (process() != owner)
      static_cast<void>(engine.release());
  }
};

Opened *make_engine(const ProgramBuilder &builder, const std::string &kernels, int32_t threads) {
  const Kernels *found = find_kernels(kernels.c_str());
  require(found != nullptr, "engine: a kernel set that is unknown, or not usable on this processor");
  return new Opened(std::make_unique<Engine>(builder.program, *found, threads));
}

void pack_rows(Opened &opened, int32_t matrix, int32_t part, int64_t first, Array<uint8_t, 2> codes, Array<uint8_t, 2> scales,
          Array<uint8_t, 2> extra) {
  Engine &engine = *opened.engine;
  const RowBytes bytes = engine.row_bytes(matrix);
  const size_t count = codes.shape(0);
  require(scales.shape(0) == count && extra.shape(0) == count && codes.shape(1) == static_cast<size_t>(bytes.codes) &&
              scales.shape(1) == static_cast<size_t>(bytes.scales) && extra.shape(1) == static_cast<size_t>(bytes.extra),
          "engine: rows of other sizes than the matrix");
  const SourceRows rows{first, static_cast<int64_t>(count), codes.data(),
                        reinterpret_cast<const uint16_t *>(scales.data()), extra.data()};
  nb::gil_scoped_release release;
  engine.pack(matrix, part, rows);
}

// segments [n, 3]: sequence, tokens, first position. held: of each segment, of each ring.
void forward(Opened &opened, Array<int32_t, 1> tokens, Longs segments,
             const std::vector<std::vector<Array<int64_t, 1>>> &held,
             const std::vector<std::tuple<Reals, Reals>> &angles, Array<int64_t, 1> wanted, Results logits) {
  Engine &engine = *opened.engine;
  require(segments.shape(1) == 3 && held.size() == segments.shape(0), "forward: tables of another format");
  require(logits.shape(0) == wanted.shape(0) &&
              logits.shape(1) == static_cast<size_t>(engine.program().buffers[kLogits].width),
          "forward: logits of another shape");
  Forward f;
  f.tokens = tokens.data();
  f.rows = static_cast<int64_t>(tokens.shape(0));
  f.wanted.assign(wanted.data(), wanted.data() + wanted.shape(0));
  f.logits = logits.data();
  int64_t row = 0;
  for (size_t n = 0; n < held.size(); ++n) {
    const int64_t *s = segments.data() + n * 3;
    Segment segment{s[0], row, s[1], s[2], {}};
    for (const auto &ring : held[n])
      segment.rings.push_back({ring.data(), static_cast<int64_t>(ring.shape(0))});
    f.segments.push_back(std::move(segment));
    require(s[1] >= 0 && s[1] <= f.rows, "forward: segments of other tokens");
    row += s[1];
  }
  require(angles.size() == engine.program().ropes.size(), "forward: angles of each rope are needed");
  for (size_t n = 0; n < angles.size(); ++n) {
    const auto &[cos, sin] = angles[n];
    const size_t pairs = static_cast<size_t>(engine.program().ropes[n]);
    require(cos.shape(0) == tokens.shape(0) && sin.shape(0) == tokens.shape(0) && cos.shape(1) == pairs &&
                sin.shape(1) == pairs,
            "forward: angles of another shape");
    f.angles.push_back({cos.data(), sin.data()});
  }
  nb::gil_scoped_release release;
  engine.forward(f);
}

void read_buffer(const Opened &opened, int32_t buffer, Results out) {
  const Engine &engine = *opened.engine;
  const auto &known = engine.program().buffers;
  require(buffer >= 0 && static_cast<size_t>(buffer) < known.size() &&
              out.shape(1) == static_cast<size_t>(known[static_cast<size_t>(buffer)].width),
          "engine: no such buffer");
  engine.read(buffer, static_cast<int64_t>(out.shape(0)), out.data());
}

} // namespace

NB_MODULE(_native, m) {
  using namespace nb::literals;
  // What a daemon thread still holds when the interpreter ends is no leak, and stderr is not the place to say so.
  nb::set_leak_warnings(false);
  using Released = nb::call_guard<nb::gil_scoped_release>;
  m.def("find_kernels", [](const std::string &name) {
    const Kernels *found = find_kernels(name.c_str());
    return std::string(found ? found->name : "");
  });
  nb::class_<ProgramBuilder>(m, "Program")
      .def(nb::init<Ints, Reals, Ints, Longs, Longs>())
      .def("add_matrix", &ProgramBuilder::add_matrix)
      .def("add_vector", &ProgramBuilder::add_vector)
      .def("add_rope", &ProgramBuilder::add_rope)
      .def("add_ring", &ProgramBuilder::add_ring)
      .def("set_kv", &ProgramBuilder::set_kv);
  nb::class_<Opened>(m, "Engine")
      .def(nb::new_(&make_engine))
      .def("pack", &pack_rows)
      .def("forward", &forward, "tokens"_a, "segments"_a, "held"_a, "angles"_a, "wanted"_a, "logits"_a.noconvert())
      .def("read", &read_buffer, "buffer"_a, "out"_a.noconvert())
      .def(
          "store",
          [](Opened &o, int64_t sequence, int32_t ring, const std::vector<int64_t> &targets, int64_t scratch) {
            o.engine->kv().store(sequence, ring, targets, scratch);
          },
          Released())
      .def(
          "copy_slots",
          [](Opened &o, int64_t source, int64_t target, const std::vector<int64_t> &filled) {
            o.engine->kv().copy_slots(source, target, filled);
          },
          Released())
      .def(
          "rotate_sinks",
          [](Opened &o, int64_t sequence, int32_t layer, const std::vector<float> &cos, const std::vector<float> &sin) {
            o.engine->kv().rotate_sinks(sequence, layer, cos, sin);
          },
          Released())
      .def_prop_ro("kv_bytes", [](Opened &o) { return o.engine->kv().bytes(); });
}
