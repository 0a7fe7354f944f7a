// How a forward is cut into stages, which follow one another, and those into units, which threads work through.
#pragma once

#include "ops/op.hpp"

namespace dsedge {

// What a unit of a stage is, and what is done with it.
//   kBand   a band of rows, taken through all the instructions: what a thread reads of a row it wrote itself, and only an
//           op that sees other rows has to wait for others. Worth unpacking the weights for
//   kRow    a row, taken through all the instructions, none of which can be cut into tasks
//   kTask   a task of the last instruction. Another one before it, its lead, makes the only row that there is: each
//           thread does that for itself, which is less than waiting for one that does
enum class Unit { kBand, kRow, kTask };

// Instructions first … last - 1.
struct Stage {
  int32_t first, last, units;
  Unit unit;
};

// Which instructions may lead the next one where there is one row.
std::vector<bool> find_leads(const Program &program);

// Where bands of about equal work end. None: rows are too few to be cut for so many threads, or too large.
std::vector<int64_t> cut_bands(const Program &program, const std::vector<Segment> &segments, int64_t rows,
                               int32_t threads);

// The stages of the forward that ctx has been planned for.
void cut_stages(const Context &ctx, const std::vector<bool> &leads, std::vector<Stage> &stages);

} // namespace dsedge
