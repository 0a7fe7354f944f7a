#include "program.hpp"

#include <cmath>
#include <stdexcept>
#include <string>

namespace dsedge {

namespace {

constexpr int64_t kWidest = int64_t{1} << 31;

// Checks one instruction; every method throws std::invalid_argument.
class Checker {
public:
  Checker(const Program &program, size_t index) : p_(program), i_(program.instructions[index]), index_(index) {}

  void check() const {
    for (float x : {i_.scale, i_.eps, i_.softcap, i_.crest})
      require(std::isfinite(x) && x >= -3e38f && x <= 3e38f, "a number that is not finite");
    switch (i_.op) {
    case Op::kEmbed:
      return embed();
    case Op::kNorm:
      return norm();
    case Op::kQuantize:
      return quantize(i_.a, i_.quantized_out);
    case Op::kLinear:
      return linear();
    case Op::kStore:
      return store();
    case Op::kAttention:
      return attention();
    case Op::kGate:
      require(i_.activation == 0 || i_.activation == 1, "an unknown activation");
      return alike({i_.a, i_.b, i_.out});
    case Op::kAdd:
      return alike({i_.a, i_.b, i_.out});
    case Op::kSelect:
      require(!buffer(i_.a).selected && buffer(i_.out).selected, "select goes from all rows to the wanted ones");
      return require(buffer(i_.a).width == buffer(i_.out).width, "widths that differ");
    case Op::kSoftcap:
      require(i_.softcap > 0, "a soft-cap that is not positive");
      return alike({i_.a, i_.out});
    case Op::kRope:
      return rope(i_.a, i_.heads);
    }
    require(false, "an unknown op");
  }

private:
  void require(bool fine, const char *what) const {
    if (!fine)
      throw std::invalid_argument("program: instruction " + std::to_string(index_) + " has " + what);
  }

  template <typename T> const T &at(const std::vector<T> &table, int32_t id, const char *what) const {
    require(id >= 0 && static_cast<size_t>(id) < table.size(), what);
    return table[static_cast<size_t>(id)];
  }
  const Buffer &buffer(int32_t id) const { return at(p_.buffers, id, "a buffer that is not there"); }
  const Buffer &quantized(int32_t id) const { return at(p_.quantized, id, "a quantized buffer that is not there"); }
  const std::vector<float> &vector(int32_t id) const { return at(p_.vectors, id, "a vector that is not there"); }
  const MatrixShape &matrix() const { return at(p_.matrices, i_.matrix, "a matrix that is not there"); }

  void alike(std::initializer_list<int32_t> ids) const {
    const Buffer &first = buffer(*ids.begin());
    for (int32_t id : ids)
      require(buffer(id).width == first.width && buffer(id).selected == first.selected, "operands that differ");
  }

  void quantize(int32_t from, int32_t to) const {
    require(buffer(from).width == quantized(to).width && buffer(from).selected == quantized(to).selected,
            "a quantized buffer that does not fit");
    require(i_.crest >= 0, "a negative crest");
  }

  void embed() const {
    const MatrixShape &m = matrix();
    require(m.parts.size() == 1 && m.columns == buffer(i_.out).width && !buffer(i_.out).selected,
            "an embedding that does not fit");
  }

  void norm() const {
    alike({i_.a, i_.out});
    require(i_.heads > 0 && i_.dim > 0 && int64_t{i_.heads} * i_.dim == buffer(i_.a).width, "heads that do not fit");
    require(vector(i_.vector).size() == static_cast<size_t>(i_.dim) && i_.eps > 0, "a norm that does not fit");
    if (i_.quantized_out != kNone)
      quantize(i_.out, i_.quantized_out);
  }

  void linear() const {
    const MatrixShape &m = matrix();
    const Buffer &in = i_.quantized == kNone ? buffer(i_.a) : quantized(i_.quantized);
    require(in.width == m.columns, "an input of another width than the matrix");
    require(i_.quantized == kNone || m.kind != Kind::kRaw, "quantized activations for a raw matrix");
    require(i_.parts.size() == m.parts.size(), "another number of parts than the matrix");
    for (size_t n = 0; n < i_.parts.size(); ++n) {
      const Part &part = i_.parts[n];
      require(part.rows == m.parts[n], "a part with other rows than the matrix");
      require(part.bias == kNone || vector(part.bias).size() == static_cast<size_t>(part.rows), "a bias that does not fit");
      if (!i_.gated)
        require(buffer(part.buffer).width == part.rows && buffer(part.buffer).selected == in.selected,
                "an output that does not fit");
    }
    require(m.interleaved == (i_.gated != 0), "interleaved parts that are not gated, or the reverse");
    if (i_.b != kNone) {
      require(!i_.gated && i_.parts.size() == 1, "a residual for several parts");
      alike({i_.b, i_.parts[0].buffer});
    }
    if (i_.gated)
      gated(m, in);
  }

  void gated(const MatrixShape &m, const Buffer &in) const {
    require(m.parts.size() == 2 && (i_.activation == 0 || i_.activation == 1), "a gate of other than two parts");
    const Buffer &out = i_.quantized_out == kNone ? buffer(i_.out) : quantized(i_.quantized_out);
    require(out.width == m.parts[0] && out.selected == in.selected && i_.crest >= 0, "an output that does not fit");
  }

  void rope(int32_t id, int32_t heads) const {
    const Buffer &x = buffer(id);
    require(heads > 0 && i_.dim > 0 && int64_t{heads} * i_.dim == x.width && !x.selected, "heads that do not fit");
    require(i_.rotary >= 2 && i_.rotary % 2 == 0 && i_.rotary <= i_.dim, "a rotary part that does not fit");
    require(at(p_.ropes, i_.rope, "a rope that is not there") == i_.rotary / 2, "a rope of other pairs");
  }

  void heads() const {
    require(i_.heads > 0 && i_.kv_heads > 0 && i_.heads % i_.kv_heads == 0, "heads that cannot be grouped");
    require(i_.kv_heads == p_.kv.kv_heads && i_.dim == p_.kv.dim, "heads that are not those of the cache");
    at(p_.kv.layers, i_.layer, "a layer that is not there");
  }

  void store() const {
    heads();
    require(buffer(i_.a).width == int64_t{i_.heads} * i_.dim && !buffer(i_.a).selected, "queries that do not fit");
    for (int32_t id : {i_.b, i_.c})
      require(buffer(id).width == int64_t{i_.kv_heads} * i_.dim && !buffer(id).selected, "keys or values that do not fit");
    require(i_.a != i_.b && i_.b != i_.c && i_.c != i_.a, "queries, keys and values that are not three buffers");
    if (i_.rope != kNone) {
      rope(i_.a, i_.heads);
      rope(i_.b, i_.kv_heads);
    }
  }

  void attention() const {
    heads();
    alike({i_.a, i_.out});
    require(buffer(i_.a).width == int64_t{i_.heads} * i_.dim && !buffer(i_.a).selected, "queries that do not fit");
    require(i_.softcap >= 0 && i_.scale > 0, "a scale or soft-cap that is not possible");
  }

  const Program &p_;
  const Instruction &i_;
  size_t index_;
};

} // namespace

void verify(const Program &program) {
  if (program.instructions.empty() || program.instructions.size() > 100000 || program.buffers.empty())
    throw std::invalid_argument("program: no instructions, or far too many");
  for (const std::vector<Buffer> *table : {&program.buffers, &program.quantized})
    for (const Buffer &buffer : *table)
      if (buffer.width < 1 || buffer.width >= kWidest)
        throw std::invalid_argument("program: a buffer of width " + std::to_string(buffer.width));
  if (!program.buffers[kLogits].selected)
    throw std::invalid_argument("program: the logits are not of the wanted rows");
  for (int64_t pairs : program.ropes)
    if (pairs < 1 || pairs > 65536)
      throw std::invalid_argument("program: a rope of " + std::to_string(pairs) + " pairs");
  for (const MatrixShape &shape : program.matrices)
    lay_out(shape);
  int32_t heads = 0;
  std::vector<bool> stored(program.kv.layers.size());
  for (size_t index = 0; index < program.instructions.size(); ++index) {
    const Instruction &instruction = program.instructions[index];
    Checker(program, index).check();
    if (instruction.op == Op::kStore) { // twice, others could still attend to the first keys
      std::vector<bool>::reference layer = stored[static_cast<size_t>(instruction.layer)];
      if (layer)
        throw std::invalid_argument("program: a layer that is stored twice");
      layer = true;
    }
    if (instruction.op != Op::kAttention)
      continue;
    if (heads && instruction.heads != heads) // tiles are cut alike for all layers
      throw std::invalid_argument("program: layers with other numbers of heads");
    heads = instruction.heads;
  }
}

} // namespace dsedge
