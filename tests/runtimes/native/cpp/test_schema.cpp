// What is refused of a program's named fields, and by which words.
#include "decoder.hpp"
#include "expect.hpp"
#include "program.hpp"

#include <stdexcept>

using namespace dsedge;
using namespace dsedge::test;

namespace {

const Fields kAdd = {{"kind", {std::string("add")}}, {"left", {int64_t{1}}}, {"right", {int64_t{2}}}, {"output", {int64_t{3}}}};

// What an instruction of these fields is refused with, "" for one that is taken.
std::string refusal(const Fields &fields) {
  try {
    decode_instruction(fields);
  } catch (const std::invalid_argument &error) {
    return error.what();
  }
  return "";
}

Fields with(Fields fields, const std::string &name, Value value) {
  for (auto &[key, old] : fields)
    if (key == name) {
      old = std::move(value);
      return fields;
    }
  fields.emplace_back(name, std::move(value));
  return fields;
}

void test_instructions() {
  const Operands operands = decode_instruction(kAdd);
  const Add &add = std::get<Add>(operands);
  expect(add.left == 1 && add.right == 2 && add.output == 3, "operands come from their names");
  const Instruction i{operands};
  expect(i.reads == std::vector<int32_t>{1, 2} && i.writes == std::vector<int32_t>{3}, "what is read and what is written");
  expect(refusal({}) == "program: an instruction without a kind", "no kind");
  expect(refusal(with(kAdd, "kind", {std::string("spin")})) == "program: the engine does not know the instruction spin", "an unknown kind");
  expect(refusal({kAdd.begin(), kAdd.end() - 1}) == "program: add lacks its field output", "a field that is missing");
  expect(refusal(with(kAdd, "spin", {int64_t{1}})) == "program: add has an unknown field spin", "an unknown field");
  Fields twice = kAdd;
  twice.emplace_back("left", Value{int64_t{1}});
  expect(refusal(twice) == "program: add has its field left twice", "a field that is there twice");
  const Value wrong[] = {{std::monostate{}}, {int64_t{-1}}, {int64_t{1} << 31}, {1.0}, {true}, {std::string("1")}, {std::vector<Value>{}}, {Fields{}}};
  for (const Value &value : wrong)
    expect(refusal(with(kAdd, "left", value)) == "program: left of add is not a row of a table", "a value of another type");
}

void test_numbers() {
  const Fields cap = {{"kind", {std::string("softcap")}}, {"input", {int64_t{0}}}, {"output", {int64_t{0}}}, {"cap", {30.0}}};
  expect(std::get<Softcap>(decode_instruction(cap)).cap == 30, "a number");
  expect(std::get<Softcap>(decode_instruction(with(cap, "cap", {int64_t{5}}))).cap == 5, "an integer is a number too");
  for (double value : {1e39, -1e39, 1.0 / 0.0, 0.0 / 0.0})
    expect(!refusal(with(cap, "cap", {value})).empty(), "what float32 does not hold");
}

void test_records() {
  const Fields buffer = {{"width", {int64_t{4}}}, {"codes", {false}}, {"wanted", {true}}};
  const Buffer found = decode<Buffer>(buffer);
  expect(found.width == 4 && !found.codes && found.wanted, "a record's fields");
  bool refused = false;
  try {
    decode<Buffer>(with(buffer, "codes", {int64_t{0}}));
  } catch (const std::invalid_argument &error) {
    refused = std::string(error.what()) == "program: codes of buffer is not true or false";
  }
  expect(refused, "a flag is no number");
  expect(schema().find("record buffer width:Integer codes:Flag wanted:Flag\n") != std::string::npos, "the schema as text");
}

void test_formats() {
  for (const char *name : {"int4-sym", "int4-zp", "int4-affine", "int8-sym", "float16", "float32"}) {
    const Format &format = format_of(find_format(name));
    expect(std::string(format.name) == name, "a format is found by its name");
    const RowBytes bytes = row_bytes(lay_out(in_one_format(name, format.codes ? 32 : 0, 90, {40, 7})).runs[0]);
    expect(bytes.codes == (format.codes ? 96 * format.bits / 8 : 90 * format.bits / 8), "bytes of a row");
    expect(bytes.scales == (format.codes ? 6 : 0), "a scale for each of three groups");
    const int64_t extra = std::string(name) == "int4-zp" ? 2 : std::string(name) == "int4-affine" ? 6 : 0;
    expect(bytes.extra == extra, "zero points in nibbles, offsets as halves");
  }
}

} // namespace

int main() {
  test_instructions();
  test_numbers();
  test_records();
  test_formats();
  std::puts("all passed");
  return 0;
}
