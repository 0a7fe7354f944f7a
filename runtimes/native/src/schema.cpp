#include "schema.hpp"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>

namespace dsedge {

namespace {

// Reads one field; what it throws names the record and the field.
class Reader {
public:
  Reader(const char *kind, const char *field, const Value &value) : kind_(kind), field_(field), value_(value) {}

  void read(Id &to, bool maybe) const {
    if (maybe && std::holds_alternative<std::monostate>(value_.data))
      to.id = kNone;
    else
      to.id = id(value_);
  }
  void read(Reads &to) const { read(to, false); }
  void read(Writes &to) const { read(to, false); }
  void read(MatrixId &to) const { read(to, false); }
  void read(VectorId &to) const { read(to, false); }
  void read(RopeId &to) const { read(to, false); }
  void read(LayerId &to) const { read(to, false); }
  void read(MaybeReads &to) const { read(to, true); }
  void read(MaybeWrites &to) const { read(to, true); }
  void read(MaybeRope &to) const { read(to, true); }
  void read(WritesList &to) const {
    for (const Value &item : get<std::vector<Value>>("a list of buffers"))
      to.ids.push_back(id(item));
  }
  void read(MaybeVectorList &to) const {
    for (const Value &item : get<std::vector<Value>>("a list of vectors"))
      to.ids.push_back(std::holds_alternative<std::monostate>(item.data) ? kNone : id(item));
  }
  void read(IntegerList &to) const {
    for (const Value &item : get<std::vector<Value>>("a list of integers")) {
      require(std::holds_alternative<int64_t>(item.data), "a list of integers");
      to.push_back(std::get<int64_t>(item.data));
    }
  }
  void read(RunList &to) const {
    for (const Value &item : get<std::vector<Value>>("a list of runs")) {
      require(std::holds_alternative<Fields>(item.data), "a list of runs");
      to.records.push_back(decode<RunRecord>(std::get<Fields>(item.data)));
    }
  }
  void read(Integer &to) const { to = get<int64_t>("an integer"); }
  void read(Flag &to) const { to = get<bool>("true or false"); }
  void read(Text &to) const { to = get<std::string>("a text"); }
  void read(Real &to) const {
    double number = 0;
    if (const int64_t *integer = std::get_if<int64_t>(&value_.data))
      number = static_cast<double>(*integer);
    else
      number = get<double>("a number");
    require(std::fabs(number) <= 3e38, "a finite number of float32"); // not of NaN
    to = static_cast<float>(number);
  }
  void read(Activation &to) const {
    const std::string &name = get<std::string>("an activation");
    const auto found = std::find(std::begin(kActivations), std::end(kActivations), name);
    require(found != std::end(kActivations), "an activation that the engine knows");
    to.kind = static_cast<int32_t>(found - std::begin(kActivations));
  }

private:
  void require(bool fine, const char *wanted) const {
    if (!fine)
      throw std::invalid_argument(std::string("program: ") + field_ + " of " + kind_ + " is not " + wanted);
  }
  template <typename T> const T &get(const char *wanted) const {
    require(std::holds_alternative<T>(value_.data), wanted);
    return std::get<T>(value_.data);
  }
  int32_t id(const Value &value) const {
    const int64_t *number = std::get_if<int64_t>(&value.data);
    require(number && *number >= 0 && *number <= std::numeric_limits<int32_t>::max(), "a row of a table");
    return static_cast<int32_t>(*number);
  }

  const char *kind_, *field_;
  const Value &value_;
};

const Value *find(const Fields &fields, const char *kind, const std::string &name) {
  const Value *found = nullptr;
  for (const auto &[key, value] : fields)
    if (key == name) {
      if (found)
        throw std::invalid_argument("program: " + std::string(kind) + " has its field " + name + " twice");
      found = &value;
    }
  return found;
}

// `instruction`: whether the field `kind` is there beside those of the record.
template <typename Record> Record read_record(const Fields &fields, bool instruction) {
  Record record;
  std::vector<std::string> known;
  if (instruction)
    known.push_back("kind");
  each_field(record, [&](const char *name, auto &field) {
    const Value *value = find(fields, Record::kKind, name);
    if (!value)
      throw std::invalid_argument(std::string("program: ") + Record::kKind + " lacks its field " + name);
    Reader(Record::kKind, name, *value).read(field);
    known.push_back(name);
  });
  for (const auto &[name, value] : fields)
    if (std::find(known.begin(), known.end(), name) == known.end())
      throw std::invalid_argument(std::string("program: ") + Record::kKind + " has an unknown field " + name);
  return record;
}

} // namespace

template <typename Record> Record decode(const Fields &fields) { return read_record<Record>(fields, false); }

#define RECORD(Name, kind) template Name decode<Name>(const Fields &);
#define INSTRUCTION(Name, kind)
#define FIELD(Type, name)
#define END(Name)
#include "../program.def"
#undef RECORD
#undef INSTRUCTION

Operands decode_instruction(const Fields &fields) {
  const Value *kind = find(fields, "an instruction", "kind");
  const std::string *name = kind ? std::get_if<std::string>(&kind->data) : nullptr;
  if (!name)
    throw std::invalid_argument("program: an instruction without a kind");
#define RECORD(Name, kind)
#define INSTRUCTION(Name, kind)                                                                                        \
  if (*name == #kind)                                                                                                  \
    return read_record<Name>(fields, true);
#include "../program.def"
  throw std::invalid_argument("program: the engine does not know the instruction " + *name);
}
#undef RECORD
#undef INSTRUCTION
#undef FIELD
#undef END

std::string schema() {
  std::string text;
#define RECORD(Name, kind) text += "record " #kind;
#define INSTRUCTION(Name, kind) text += "instruction " #kind;
#define FIELD(Type, name) text += " " #name ":" #Type;
#define END(Name) text += "\n";
#include "../program.def"
#undef RECORD
#undef INSTRUCTION
#undef FIELD
#undef END
  return text;
}

} // namespace dsedge
