#include "program.hpp"

#include "ops/op.hpp"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <type_traits>

namespace dsedge {

namespace {

constexpr int64_t kWidest = int64_t{1} << 31, kMostInstructions = 100000, kMostPairs = 65536, kMostDim = 65535;

void require(bool fine, const std::string &message) {
  if (!fine)
    throw std::invalid_argument("program: " + message);
}

// Calls visit(name, field) for each operand.
template <typename Visit> void each_operand(Operands &operands, const Visit &visit) {
  std::visit(
      [&](auto &kind) {
        if constexpr (!std::is_same_v<std::decay_t<decltype(kind)>, std::monostate>)
          each_field(kind, visit);
      },
      operands);
}

// Lists the buffers that an operand names.
struct BufferLists {
  std::vector<int32_t> &reads, &writes;

  static void add(std::vector<int32_t> &to, int32_t id) {
    if (id != kNone)
      to.push_back(id);
  }
  void operator()(const char *, const Reads &x) const { add(reads, x); }
  void operator()(const char *, const MaybeReads &x) const { add(reads, x); }
  void operator()(const char *, const Writes &x) const { add(writes, x); }
  void operator()(const char *, const MaybeWrites &x) const { add(writes, x); }
  void operator()(const char *, const WritesList &x) const { writes.insert(writes.end(), x.ids.begin(), x.ids.end()); }
  template <typename Other> void operator()(const char *, const Other &) const {
    static_assert(std::is_same_v<Other, MatrixId> || std::is_same_v<Other, VectorId> || std::is_same_v<Other, RopeId> ||
                      std::is_same_v<Other, MaybeRope> || std::is_same_v<Other, LayerId> ||
                      std::is_same_v<Other, MaybeVectorList> || std::is_same_v<Other, Activation> ||
                      std::is_same_v<Other, Integer> || std::is_same_v<Other, Real>,
                  "a type of operand that is neither read nor written nor known to be neither");
  }
};

// Requires that ids are rows of their tables, and numbers finite.
struct IdCheck {
  const Program &program;
  size_t index;

  void fits(const char *name, int32_t id, size_t count, bool maybe = false) const {
    if (maybe && id == kNone)
      return;
    require(id >= 0 && static_cast<size_t>(id) < count,
            "instruction " + std::to_string(index) + " has no such " + name + ": " + std::to_string(id));
  }
  void operator()(const char *name, const Reads &x) const { fits(name, x, program.buffers.size()); }
  void operator()(const char *name, const Writes &x) const { fits(name, x, program.buffers.size()); }
  void operator()(const char *name, const MaybeReads &x) const { fits(name, x, program.buffers.size(), true); }
  void operator()(const char *name, const MaybeWrites &x) const { fits(name, x, program.buffers.size(), true); }
  void operator()(const char *name, const WritesList &x) const {
    for (int32_t id : x.ids)
      fits(name, id, program.buffers.size());
  }
  void operator()(const char *name, const MatrixId &x) const { fits(name, x, program.matrices.size()); }
  void operator()(const char *name, const VectorId &x) const { fits(name, x, program.vectors.size()); }
  void operator()(const char *name, const MaybeVectorList &x) const {
    for (int32_t id : x.ids)
      fits(name, id, program.vectors.size(), true);
  }
  void operator()(const char *name, const RopeId &x) const { fits(name, x, program.ropes.size()); }
  void operator()(const char *name, const MaybeRope &x) const { fits(name, x, program.ropes.size(), true); }
  void operator()(const char *name, const LayerId &x) const { fits(name, x, program.kv.layers.size()); }
  void operator()(const char *name, const Activation &x) const { fits(name, x.kind, std::size(kActivations)); }
  void operator()(const char *, const Integer &) const {} // what it may be is for the op to say
  void operator()(const char *name, const Real &x) const {
    require(std::fabs(x) <= 3e38f, "instruction " + std::to_string(index) + ": " + name + " is not finite");
  }
};

KvFormat kv_format(const std::string &name) {
  const std::pair<const char *, KvFormat> known[] = {
      {"float32", KvFormat::kFloat32}, {"float16", KvFormat::kFloat16}, {"int8", KvFormat::kInt8}};
  for (const auto &[text, format] : known)
    if (name == text)
      return format;
  throw std::invalid_argument("program: no such format of keys and values: " + name);
}

int32_t size_of_head(int64_t number) {
  require(number > 0 && number <= kMostDim, "a layer of " + std::to_string(number) + " heads or dimensions");
  return static_cast<int32_t>(number);
}

KvLayer layer_of(const LayerRecord &record) {
  require(record.ring >= 0 && record.ring < 65536, "a layer's ring that is not there");
  return {static_cast<int32_t>(record.ring), size_of_head(record.kv_heads), size_of_head(record.key_dim),
          size_of_head(record.value_dim), kv_format(record.format)};
}

int32_t group_of(int64_t group) {
  require(group >= 0 && group <= 65536, "groups of " + std::to_string(group) + " columns");
  return static_cast<int32_t>(group);
}

RunShape run_of(const RunRecord &record) {
  require(record.weight >= 0 && record.weight < 65536, "a run of a weight that is not there");
  return {static_cast<int32_t>(record.weight), record.row, record.rows, record.column, record.columns,
          find_format(record.format), group_of(record.group)};
}

const Fields &fields_of(const Value &value) {
  require(std::holds_alternative<Fields>(value.data), "an entry of a table that has no fields");
  return std::get<Fields>(value.data);
}

// Calls `take` for each entry of a table.
template <typename Take> void each_entry(const std::string &name, const Value &table, const Take &take) {
  require(std::holds_alternative<std::vector<Value>>(table.data), name + " is no list");
  for (const Value &entry : std::get<std::vector<Value>>(table.data))
    take(fields_of(entry));
}

void decode_table(Program &program, const std::string &name, const Value &table) {
  const auto each = [&](const auto &take) { each_entry(name, table, take); };
  if (name == "instructions")
    each([&](const Fields &entry) { program.instructions.emplace_back(decode_instruction(entry)); });
  else if (name == "buffers")
    each([&](const Fields &entry) { program.buffers.push_back(decode<Buffer>(entry)); });
  else if (name == "matrices")
    each([&](const Fields &entry) {
      const MatrixRecord m = decode<MatrixRecord>(entry);
      program.matrices.push_back({m.columns, m.rows, {}});
      for (const RunRecord &run : m.runs.records)
        program.matrices.back().runs.push_back(run_of(run));
    });
  else if (name == "ropes")
    each([&](const Fields &entry) { program.ropes.push_back(decode<RopeRecord>(entry).pairs); });
  else if (name == "rings")
    each([&](const Fields &entry) { program.kv.rings.push_back(decode<RingShape>(entry)); });
  else if (name == "layers")
    each([&](const Fields &entry) { program.kv.layers.push_back(layer_of(decode<LayerRecord>(entry))); });
  else
    require(false, "there is no table " + name);
}

// Logits, and all buffers and shapes by themselves.
void verify_tables(const Program &program) {
  require(!program.instructions.empty() && program.instructions.size() <= kMostInstructions && !program.buffers.empty(),
          "no instructions, or far too many");
  for (const Buffer &buffer : program.buffers)
    require(buffer.width > 0 && buffer.width < kWidest, "a buffer of width " + std::to_string(buffer.width));
  require(program.buffers[kLogits].wanted && !program.buffers[kLogits].codes,
          "the logits are not floats of the wanted rows");
  for (int64_t pairs : program.ropes)
    require(pairs > 0 && pairs <= kMostPairs, "a rope of " + std::to_string(pairs) + " pairs");
  for (const MatrixShape &shape : program.matrices)
    lay_out(shape);
}

// Whether all buffers of an instruction have the same rows.
bool same_rows(const Program &program, const Instruction &i) {
  bool same = true;
  for (const std::vector<int32_t> *ids : {&i.reads, &i.writes})
    for (int32_t id : *ids)
      same &= program.buffer(id).wanted == program.buffer(i.reads.empty() ? i.writes[0] : i.reads[0]).wanted;
  return same;
}

// Each buffer is written before it is read, by one operand of an instruction alone, and something writes the logits: else
// a forward would give numbers of an earlier one, or of memory that it was lent.
void verify_order(const Program &program) {
  std::vector<bool> written(program.buffers.size());
  for (size_t index = 0; index < program.instructions.size(); ++index) {
    const Instruction &i = program.instructions[index];
    const Checker check(program, index);
    for (int32_t id : i.reads)
      check.require(written[static_cast<size_t>(id)], "an operand that nothing has written");
    for (int32_t id : i.writes) {
      check.require(std::count(i.writes.begin(), i.writes.end(), id) == 1, "two outputs in one buffer");
      written[static_cast<size_t>(id)] = true;
    }
  }
  require(written[kLogits], "nothing writes the logits");
}

} // namespace

Instruction::Instruction(Operands of) : operands(std::move(of)) {
  each_operand(operands, BufferLists{reads, writes});
}

const Op &Instruction::op() const { return op_at(operands.index()); }

Program decode_program(const Fields &tables, std::vector<std::vector<float>> vectors) {
  constexpr const char *kTables[] = {"instructions", "buffers", "matrices", "ropes", "rings", "layers"};
  Program program;
  std::vector<std::string> seen;
  for (const auto &[name, table] : tables) {
    require(std::find(seen.begin(), seen.end(), name) == seen.end(), "the table " + name + " is there twice");
    decode_table(program, name, table);
    seen.push_back(name);
  }
  for (const char *name : kTables)
    require(std::find(seen.begin(), seen.end(), name) != seen.end(), std::string("the table ") + name + " is missing");
  program.vectors = std::move(vectors);
  return program;
}

void verify(const Program &program) {
  verify_tables(program);
  for (size_t index = 0; index < program.instructions.size(); ++index) {
    const Instruction &i = program.instructions[index];
    require(i.operands.index() > 0, "an instruction of no kind");
    Operands operands = i.operands;
    each_operand(operands, IdCheck{program, index});
    require(!i.op().one_set_of_rows || same_rows(program, i),
            "instruction " + std::to_string(index) + " has buffers of all rows and of the wanted ones");
    i.op().verify(Checker(program, index), i);
  }
  verify_order(program);
  verify_layers(program);
}

void Checker::require(bool fine, const char *what) const {
  if (!fine)
    throw std::invalid_argument("program: instruction " + std::to_string(index_) + " (" +
                                program.instructions[index_].op().name + ") has " + what);
}

const Buffer &Checker::floats(int32_t id) const {
  require(!program.buffer(id).codes, "codes where floats belong");
  return program.buffer(id);
}

const Buffer &Checker::codes(int32_t id) const {
  require(program.buffer(id).codes, "floats where codes belong");
  return program.buffer(id);
}

void Checker::alike(std::initializer_list<int32_t> ids) const {
  for (int32_t id : ids)
    require(floats(id).width == floats(*ids.begin()).width, "operands of different widths");
}

void Checker::rope(int32_t rope, int64_t dim) const {
  if (rope != kNone)
    require(program.ropes[static_cast<size_t>(rope)] * 2 <= dim, "a rope of more pairs than its heads");
}

void Checker::biases(const MaybeVectorList &biases, const std::vector<int64_t> &widths) const {
  require(biases.ids.size() == widths.size(), "another number of biases than of weights");
  for (size_t n = 0; n < biases.ids.size(); ++n)
    require(biases.ids[n] == kNone ||
                program.vectors[static_cast<size_t>(biases.ids[n])].size() == static_cast<size_t>(widths[n]),
            "a bias that does not fit");
}

} // namespace dsedge
