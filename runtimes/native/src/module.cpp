// The Python module: arrays become the program and the arguments of calls. Shapes are checked here, contents by the engine.
#include "engine.hpp"
#include "sampling.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
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
using Longs = Array<int64_t, 2>;
using Reals = Array<float, 2>;
using Results = nb::ndarray<float, nb::ndim<2>, nb::c_contig, nb::device::cpu>; // written to: never a converted copy

void require(bool fine, const char *message) {
  if (!fine)
    throw std::invalid_argument(message);
}

constexpr int kDeepest = 8; // of lists in lists

// A text, which Python may hold without its being Unicode.
std::string text_of(nb::handle given) {
  std::string text;
  require(nb::try_cast(given, text), "program: a text that is no Unicode");
  return text;
}

// A Python value as the schema's decoder takes it.
Value value_of(nb::handle given, int depth) {
  require(depth < kDeepest, "program: lists in too many lists");
  if (given.is_none())
    return {std::monostate{}};
  if (nb::isinstance<nb::bool_>(given))
    return {nb::cast<bool>(given)};
  if (nb::isinstance<nb::int_>(given)) {
    int64_t number = 0;
    require(nb::try_cast(given, number), "program: an integer of more than 64 bits");
    return {number};
  }
  if (nb::isinstance<nb::float_>(given))
    return {nb::cast<double>(given)};
  if (nb::isinstance<nb::str>(given))
    return {text_of(given)};
  if (nb::isinstance<nb::dict>(given)) {
    Fields fields;
    for (const auto &[key, item] : nb::borrow<nb::dict>(given)) {
      require(nb::isinstance<nb::str>(key), "program: a field whose name is no text");
      fields.emplace_back(text_of(key), value_of(item, depth + 1));
    }
    return {std::move(fields)};
  }
  require(nb::isinstance<nb::list>(given) || nb::isinstance<nb::tuple>(given), "program: a value of no known type");
  std::vector<Value> items;
  for (nb::handle item : given)
    items.push_back(value_of(item, depth + 1));
  return {std::move(items)};
}

Program program_of(const nb::dict &tables, const std::vector<Array<float, 1>> &vectors) {
  std::vector<std::vector<float>> copies;
  for (const Array<float, 1> &values : vectors)
    copies.emplace_back(values.data(), values.data() + values.shape(0));
  const Value value = value_of(tables, 0);
  return decode_program(std::get<Fields>(value.data), std::move(copies));
}

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

Opened *make_engine(const nb::dict &tables, const std::vector<Array<float, 1>> &vectors, const std::string &kernels,
                    int32_t threads, int32_t kv_file) {
  const Kernels *found = find_kernels(kernels.c_str());
  require(found != nullptr, "engine: a kernel set that is unknown, or not usable on this processor");
  return new Opened(std::make_unique<Engine>(program_of(tables, vectors), *found, threads, kv_file));
}

void pack_rows(Opened &opened, int32_t matrix, int32_t run, int64_t first, Array<uint8_t, 2> codes, Array<uint8_t, 2> scales,
          Array<uint8_t, 2> extra) {
  Engine &engine = *opened.engine;
  const RowBytes bytes = engine.row_bytes(matrix, run);
  const size_t count = codes.shape(0);
  require(scales.shape(0) == count && extra.shape(0) == count && codes.shape(1) == static_cast<size_t>(bytes.codes) &&
              scales.shape(1) == static_cast<size_t>(bytes.scales) && extra.shape(1) == static_cast<size_t>(bytes.extra),
          "engine: rows of other sizes than the run");
  const SourceRows rows{first, static_cast<int64_t>(count), codes.data(),
                        reinterpret_cast<const uint16_t *>(scales.data()), extra.data()};
  nb::gil_scoped_release release;
  engine.pack(matrix, run, rows);
}

// segments [n, 2 + 2 * rings]: tokens, first position, window and sinks of each ring. runs: of each segment, of each ring.
// attention: segment, ring, and where to add what its queries pay.
void forward(Opened &opened, Array<int32_t, 1> tokens, Longs segments, const std::vector<std::vector<Longs>> &runs,
             const std::vector<std::tuple<Reals, Reals>> &angles, Array<int64_t, 1> wanted, Results logits,
             const std::vector<std::tuple<size_t, size_t, Results>> &attention) {
  Engine &engine = *opened.engine;
  const size_t rings = engine.program().kv.rings.size();
  require(segments.shape(1) == 2 + 2 * rings && runs.size() == segments.shape(0), "forward: tables of another format");
  require(logits.shape(0) == wanted.shape(0) &&
              logits.shape(1) == static_cast<size_t>(engine.program().buffers[kLogits].width),
          "forward: logits of another shape");
  Forward f;
  f.tokens = tokens.data();
  f.rows = static_cast<int64_t>(tokens.shape(0));
  f.wanted.assign(wanted.data(), wanted.data() + wanted.shape(0));
  f.logits = logits.data();
  int64_t row = 0;
  for (size_t n = 0; n < runs.size(); ++n) {
    const int64_t *s = segments.data() + n * (2 + 2 * rings);
    require(s[0] >= 0 && s[0] <= f.rows && runs[n].size() == rings, "forward: segments of other tokens or rings");
    Segment segment{row, s[0], s[1], {}};
    for (size_t ring = 0; ring < rings; ++ring) {
      const Longs &table = runs[n][ring];
      require(table.shape(1) == 3, "forward: runs of another format");
      segment.rings.push_back({table.data(), static_cast<int64_t>(table.shape(0)), s[2 + 2 * ring], s[3 + 2 * ring]});
    }
    f.segments.push_back(std::move(segment));
    row += s[0];
  }
  for (const auto &[segment, ring, out] : attention) {
    require(segment < f.segments.size() && ring < rings, "forward: attention of a ring that is not there");
    RingView &view = f.segments[segment].rings[ring];
    int64_t left = static_cast<int64_t>(out.shape(1)); // the runs are not checked yet: their sum could overflow
    for (int64_t run = 0; run < view.count; ++run) {
      const int64_t rows = view.runs[3 * run + 2];
      require(rows >= 0 && rows <= left, "forward: attention of another shape");
      left -= rows;
    }
    require(out.shape(0) == static_cast<size_t>(f.segments[segment].count) && left == 0,
            "forward: attention of another shape");
    view.attention = out.data();
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

// `rule` has the fields of SamplingRule.
Sampler *make_sampler(const nb::dict &rule, const std::string &kernels) {
  const Kernels *found = find_kernels(kernels.c_str());
  require(found != nullptr, "sampling: a kernel set that is unknown, or not usable on this processor");
  SamplingRule r;
  size_t known = 0;
  const auto take = [&](const char *name, auto &value) {
    require(rule.contains(name) && nb::try_cast(rule[name], value), "sampling: a field that is missing or of another type");
    ++known;
  };
  take("temperature", r.temperature);
  take("top_k", r.top_k);
  take("top_p", r.top_p);
  take("min_p", r.min_p);
  take("repetition", r.repetition);
  take("presence", r.presence);
  take("frequency", r.frequency);
  take("seed", r.seed);
  take("end", r.end);
  take("holes", r.holes);
  take("bias_ids", r.bias_ids);
  take("bias", r.bias);
  require(known == rule.size(), "sampling: a field that is not known");
  return new Sampler(std::move(r), *found);
}

int32_t sample(Sampler &sampler, Array<float, 1> logits, std::optional<Array<uint8_t, 1>> allowed) {
  const size_t end = static_cast<size_t>(sampler.end());
  require(logits.shape(0) >= end && (!allowed || allowed->shape(0) >= end), "sampling: fewer logits than tokens");
  return sampler.sample(logits.data(), allowed ? allowed->data() : nullptr);
}

// [slots][kv heads][dim], of floats or of halves.
template <typename T> using Rows = nb::ndarray<T, nb::ndim<3>, nb::c_contig, nb::device::cpu>;

template <typename T>
void check_rows(const Engine &engine, int32_t layer, size_t slots, const Rows<T> &keys, const Rows<T> &values) {
  const auto &layers = engine.program().kv.layers;
  require(layer >= 0 && static_cast<size_t>(layer) < layers.size(), "kv: no such layer");
  const KvLayer &l = layers[static_cast<size_t>(layer)];
  const auto fits = [&](const Rows<T> &rows, int32_t dim) {
    return rows.shape(0) == slots && rows.shape(1) == static_cast<size_t>(l.kv_heads) && rows.shape(2) == static_cast<size_t>(dim);
  };
  require(fits(keys, l.key_dim) && fits(values, l.value_dim), "kv: rows of another shape");
}

template <typename T>
void read_rows(Opened &opened, int32_t layer, const std::vector<int64_t> &slots, Rows<T> keys, Rows<T> values) {
  check_rows(*opened.engine, layer, slots.size(), keys, values);
  nb::gil_scoped_release release;
  opened.engine->kv().read(layer, slots, keys.data(), values.data());
}

template <typename T>
void write_rows(Opened &opened, int32_t layer, const std::vector<int64_t> &slots, Rows<T> keys, Rows<T> values) {
  check_rows(*opened.engine, layer, slots.size(), keys, values);
  nb::gil_scoped_release release;
  opened.engine->kv().write(layer, slots, keys.data(), values.data());
}

} // namespace

NB_MODULE(_native, m) {
  using namespace nb::literals;
  // A daemon thread may hold an engine when the interpreter ends: that is no leak to report.
  nb::set_leak_warnings(false);
  using Released = nb::call_guard<nb::gil_scoped_release>;
  m.def("find_kernels", [](const std::string &name) {
    const Kernels *found = find_kernels(name.c_str());
    return std::string(found ? found->name : "");
  });
  m.def("schema", &schema);
  m.def("uniform", &uniform, "seed"_a, "draw"_a);
  nb::class_<Sampler>(m, "Sampler")
      .def(nb::new_(&make_sampler), "rule"_a, "kernels"_a)
      .def("prompt", [](Sampler &s, Array<int32_t, 1> tokens) { s.prompt({tokens.data(), tokens.shape(0)}); })
      .def("accept", &Sampler::accept, "token"_a)
      .def("truncate", &Sampler::truncate, "count"_a)
      .def("sample", &sample, "logits"_a, "allowed"_a.none())
      .def_prop_ro("draws", &Sampler::draws);
  nb::class_<Opened>(m, "Engine")
      .def(nb::new_(&make_engine), "tables"_a, "vectors"_a, "kernels"_a, "threads"_a,
           "kv_file"_a = kNoFile)
      .def("pack", &pack_rows)
      .def("forward", &forward, "tokens"_a, "segments"_a, "runs"_a, "angles"_a, "wanted"_a, "logits"_a.noconvert(),
           "attention"_a = nb::list())
      .def("read", &read_buffer, "buffer"_a, "out"_a.noconvert())
      .def(
          "copy_rows",
          [](Opened &o, int32_t ring, int64_t source, int64_t target, int64_t count) {
            o.engine->kv().copy(ring, source, target, count);
          },
          Released())
      .def(
          "rotate_rows",
          [](Opened &o, int32_t layer, int64_t source, int64_t target, int64_t count, const std::vector<float> &cos,
             const std::vector<float> &sin) { o.engine->kv().rotate(layer, source, target, count, cos, sin); },
          Released())
      .def("read_rows", &read_rows<float>, "layer"_a, "slots"_a, "keys"_a.noconvert(), "values"_a.noconvert())
      .def("read_rows", &read_rows<uint16_t>, "layer"_a, "slots"_a, "keys"_a.noconvert(), "values"_a.noconvert())
      .def("write_rows", &write_rows<float>, "layer"_a, "slots"_a, "keys"_a.noconvert(), "values"_a.noconvert())
      .def("write_rows", &write_rows<uint16_t>, "layer"_a, "slots"_a, "keys"_a.noconvert(), "values"_a.noconvert())
      .def_prop_ro("weight_bytes", [](Opened &o) { return o.engine->weight_bytes(); })
      .def_prop_ro("kv_bytes", [](Opened &o) { return o.engine->kv().bytes(); });
}
