// What a packed forward was asked for, checked, and turned into lists that the kernels walk.
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "types.hpp"

namespace paradecode {

class LogitRows;

// The pages of the layers with one window, from the first that is there.
struct PageTable {
  int window = 0;
  std::int64_t first = 0;
  const std::int32_t* pages = nullptr;
  std::int64_t count = 0;
};

// Page tables that are held while they are used.
struct WindowTables {
  struct Held {
    int window = 0;
    std::int64_t first = 0;
    std::vector<std::int32_t> pages;
  };
  std::vector<Held> held;
  std::vector<PageTable> tables() const {
    std::vector<PageTable> out;
    for (const Held& one : held)
      out.push_back(
          {one.window, one.first, one.pages.data(), static_cast<std::int64_t>(one.pages.size())});
    return out;
  }
};

// What the layers with a state read and write; see interface.StatePages.
struct StateInput {
  bool given = false;
  std::int64_t first = 0;                  // page of the first of `records`
  std::vector<std::int32_t> records = {};  // -1: rows there leave no record
  std::int64_t base = 0;
  std::int64_t state = -1;
  std::vector<std::pair<std::int64_t, std::int64_t>> writes = {};  // page and slot
};

// One span as it came; the pointers belong to the caller. See interface.Span for the meaning.
struct SpanInput {
  const std::int32_t* pages = nullptr;
  std::int64_t page_count = 0;
  std::vector<PageTable> windows;  // in place of `pages`
  const std::int32_t* tokens = nullptr;
  const std::int32_t* positions = nullptr;
  const std::int32_t* slots = nullptr;
  std::int64_t rows = 0;
  std::int64_t context = 0;
  const std::int32_t* visible = nullptr;  // or null: range(context)
  std::int64_t visible_count = 0;
  const std::int32_t* tail = nullptr;
  const std::int32_t* tail_positions = nullptr;
  std::int64_t tail_count = 0;
  const std::uint8_t* mask = nullptr;  // or null: causal
  const std::int32_t* logits = nullptr;
  std::int64_t logit_count = 0;
  const std::int32_t* attention = nullptr;  // rows whose weights are wanted
  std::int64_t attention_count = 0;
  std::vector<int> hidden;
  const float* embeddings = nullptr;  // of the last given_rows
  const float* resume = nullptr;
  std::int64_t given_rows = 0;       // rows that are not looked up
  bool canvas = false;               // of a model that refines random tokens
  const LogitRows* guess = nullptr;  // the model's last one of a canvas, if there was one
  StateInput states;
};

// A layer that a forward runs, or one of its halves. What does not run leaves the residual stream
// as it is; only attention reads and writes keys and values.
struct LayerPart {
  int layer = 0;
  bool attention = true;
  bool mlp = true;
};

struct PlanLimits {
  int vocab_size = 0;
  int context_length = 0;
  int layers = 0;
  int sliding_window = 0;
  std::int64_t pages = 0;
};

// Where the key and value of a new row go.
struct Slot {
  std::int32_t page = 0;
  std::uint8_t row = 0;
  bool scratch = false;
};

struct SpanPlan {
  int first_row = 0;  // in the packed forward
  int rows = 0;
  SpanView view;

  std::vector<Run> prefix;
  std::vector<Run> extra;
  std::vector<RowView> row_views;
  std::vector<std::int32_t> lists;
  std::vector<std::int32_t> extra_positions;
};

class Plan {
 public:
  // Throws InvalidInput when anything is out of range.
  Plan(const std::vector<SpanInput>& inputs, const std::vector<LayerPart>& layers,
       const PlanLimits& limits);
  Plan(const Plan&) = delete;
  Plan& operator=(const Plan&) = delete;

  // The span of a packed row.
  const SpanPlan& span_of(int row) const;

  int rows = 0;
  int scratch_pages = 0;
  std::int32_t most_extra = 0;  // tokens beyond the prefix that a span has
  std::vector<SpanPlan> spans;
  std::vector<Slot> slots;               // of each packed row
  std::vector<std::int32_t> positions;   // of each packed row
  std::vector<std::int32_t> logit_rows;  // packed rows that go through the head, span after span
};

}  // namespace paradecode
