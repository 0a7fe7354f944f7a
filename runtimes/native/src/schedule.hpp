// A forward is a sequence of stages; the units of a stage are claimed by threads, and the next begins when all are done.
#pragma once

#include "ops/op.hpp"

namespace dsedge {

// What a unit of a stage is.
//   kBand   a band of rows through all of the stage's instructions. A thread reads what it wrote itself, so only an op that
//           sees other rows begins a new stage
//   kRow    one row through all of the stage's instructions, none of which has tasks
//   kTask   a task of the stage's last instruction. An instruction before it is its lead: there is one row, and each thread
//           computes it for itself, which takes less time than waiting for another thread
enum class Unit { kBand, kRow, kTask };

// Instructions first … last - 1.
struct Stage {
  int32_t first, last, units;
  Unit unit;
};

// For each instruction, whether it may lead the next one where there is one row.
std::vector<bool> find_leads(const Program &program);

// Where bands of about equal work end. Empty: there are too few rows for so many threads, or a band would exceed caches.
std::vector<int64_t> cut_bands(const Program &program, const std::vector<Segment> &segments, int64_t rows,
                               int32_t threads);

// The stages of the forward that ctx has been planned for.
void cut_stages(const Context &ctx, const std::vector<bool> &leads, std::vector<Stage> &stages);

} // namespace dsedge
