// Layers that keep a state: what rows leave, where pages begin, and who comes before a row.
//
// A row leaves a record, and a page of 16 rows begins with a state, which is a function of the
// records before it; see models/recurrence.py. So no bit depends on how a text is cut into
// forwards.
#pragma once

#include <cstdint>
#include <vector>

#include "memory.hpp"
#include "plan.hpp"
#include "shape.hpp"

namespace paradecode {

// The records and states of all such parts. Memory is taken as it is written.
class StateStore {
 public:
  explicit StateStore(const ModelShape& shape);

  void reserve(std::int64_t record_pages, std::int64_t slots);
  std::int64_t record_rows() const { return record_pages_ * kPage; }
  std::int64_t slots() const { return slots_; }
  float* record(int part, std::int64_t row) const {
    const Part& own = parts_[static_cast<std::size_t>(part)];
    return reinterpret_cast<float*>(own.records.data()) + row * own.record_numbers;
  }
  float* state(int part, std::int64_t slot) const {
    const Part& own = parts_[static_cast<std::size_t>(part)];
    return reinterpret_cast<float*>(own.states.data()) + slot * own.state_numbers;
  }
  // Between rows of records; all sources are read first.
  void copy(const std::int64_t* source, const std::int64_t* target, std::int64_t count);
  bool empty() const { return parts_.empty(); }

 private:
  struct Part {
    std::int64_t record_numbers = 0;
    std::int64_t state_numbers = 0;
    Mapping records;
    Mapping states;
  };
  std::vector<Part> parts_;
  std::int64_t record_pages_ = 0;
  std::int64_t slots_ = 0;
};

// The ancestors of one span's rows. Columns are the cached rows from the first page on, then those
// of the tail, then the span's rows.
struct SpanLineage {
  // The state behind 16 columns that follow another state; the first one is given.
  struct Start {
    int parent = -1;
    std::int32_t columns[kPage] = {};
  };
  struct Write {
    int start = 0;
    std::int64_t slot = 0;
  };

  int first_row = 0;  // in the packed forward
  int rows = 0;
  std::int64_t state = -1;            // slot of the first state; -1: zeros
  std::vector<std::int64_t> cached;   // rows of records
  std::vector<std::int64_t> targets;  // of each row; -1: it leaves no record
  std::vector<std::int32_t> order;    // the rows by start and position: ancestors come first
  std::vector<std::int32_t> start;    // of each row
  std::vector<std::int64_t> path_at;  // where each row's path begins, and the end of all
  std::vector<std::int32_t> paths;    // columns by position, from the first page on
  std::vector<Start> starts;
  std::vector<Write> writes;

  const std::int32_t* path(int row) const {
    return paths.data() + path_at[static_cast<std::size_t>(row)];
  }
  int depth(int row) const {
    const auto at = static_cast<std::size_t>(row);
    return static_cast<int>(path_at[at + 1] - path_at[at]);
  }
};

// Throws InvalidInput if a row does not see exactly one row at each position before its own, if
// something is out of range, or if two spans write to one place.
std::vector<SpanLineage> plan_states(const std::vector<SpanInput>& spans, const StateStore& store);

}  // namespace paradecode
