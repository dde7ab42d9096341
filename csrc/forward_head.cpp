// The logits of a forward, or only the best tokens.
#include <algorithm>
#include <cmath>

#include "forward_products.hpp"

namespace paradecode {
namespace {

// Panels of a chunk of a screened head, which are whole vectors of 64 logits, and the chunks.
int screen_step(int panels, int threads) {
  return round_up(panels / (threads * 4 * kShare), 4) + 4;
}
int screen_steps(int panels, int threads) {
  const int step = screen_step(panels, threads);
  return (panels + step - 1) / step;
}

std::size_t logit_bytes(int panels, int rows) {
  return count(panels, rows) * kLanes * sizeof(float);
}

}  // namespace

// A row of the head's input.
auto Forward::head_input() {
  return [this](int row, float* out) {
    const std::int64_t from = plan_.logit_rows[static_cast<std::size_t>(row)];
    norm_row(states_ + from * width_, model_.weights_.norm, out);
    return out;
  };
}

// Logits [row, end) of some panels of the head, or of what stands for it.
void Forward::head_product(const Matrix& weight, int panel, int panels, const Activations& input,
                           int row, int end) {
  const std::int64_t stride = LogitRows::stride_for(shape_.outputs);
  count_bytes(logit_bytes(panels, end - row));
  const float* bias = model_.weights_.head_bias;
  kernels_.matmul(weight, panel, panels, input, row, end - row,
                  result_.logits->writable(row) + panel * kLanes, stride,
                  bias == nullptr ? nullptr : bias + panel * kLanes, false);
  if (shape_.softcap > 0)
    for (int r = row; r < end; ++r)
      kernels_.cap(result_.logits->writable(r) + panel * kLanes, shape_.softcap,
                   std::int64_t{panels} * kLanes);
  // What lies beyond the vocabulary is the padding of these panels, or of the row.
  const int last = panel + panels;
  const std::int64_t until = last < weight.panels ? std::int64_t{last} * kLanes : stride;
  const std::int64_t begin = std::max<std::int64_t>(shape_.outputs, panel * kLanes);
  if (begin < until)
    for (int r = row; r < end; ++r)
      std::fill(result_.logits->writable(r) + begin, result_.logits->writable(r) + until,
                -INFINITY);
}

void Forward::head(Member& member) {
  const Matrix& weight = model_.weights_.head;
  const auto rows = static_cast<int>(plan_.logit_rows.size());
  const int step = std::max(1, weight.panels / (model_.team_->size() * 4 * kShare));
  const int steps = (weight.panels + step - 1) / step;
  member.enter(Part::Head);
  with_input(member, rows, width_, needs({weight.format}), head_input(), steps * blocks_of(rows),
             [&](int chunk, const Activations& input) {
               const int panel = chunk % steps * step;
               const int row = chunk / steps * kRowBlock;
               head_product(weight, panel, std::min(step, weight.panels - panel), input, row,
                            std::min(rows, row + kRowBlock));
             });
}

bool Forward::screened() const {
  const std::size_t rows = plan_.logit_rows.size();
  return only_best_ && model_.screen_ != nullptr && rows > 0 && rows <= kScreenedRows;
}

void Forward::plan_screen() {
  const int steps = screen_steps(model_.weights_.head.panels, model_.team_->size());
  about_.resize(static_cast<std::size_t>(steps) * plan_.logit_rows.size());
  best_.resize(about_.size());
}

void Forward::screened_head(Member& member) {
  const Screen& screen = *model_.screen_;
  const Matrix& weight = model_.weights_.head;
  const auto rows = static_cast<int>(plan_.logit_rows.size());
  const int steps = screen_steps(weight.panels, model_.team_->size());
  const int step = screen_step(weight.panels, model_.team_->size());
  const auto panels_of = [&](int chunk) { return std::min(step, weight.panels - chunk * step); };
  member.enter(Part::Head);
  with_input(member, rows, width_, needs({weight.format}), head_input(), steps,
             [&](int chunk, const Activations& input) {
               head_product(screen.about(), chunk * step, panels_of(chunk), input, 0, rows);
               count_bytes(logit_bytes(panels_of(chunk), rows));
               const std::int64_t first = std::int64_t{chunk} * step * kLanes;
               const std::int64_t end = chunk + 1 < steps ? first + step * kLanes
                                                          : LogitRows::stride_for(shape_.outputs);
               for (int r = 0; r < rows; ++r) {
                 Best& top = about_[static_cast<std::size_t>(chunk * rows + r)];
                 std::int64_t index = 0;
                 kernels_.best(result_.logits->writable(r) + first, end - first, &top.value, &index,
                               &top.nan);
                 top.token = static_cast<std::int32_t>(first + index);
               }
             });

  // A logit that the best one must reach, and how far the others may be from what they are about.
  float floors[kScreenedRows];
  float reaches[kScreenedRows];
  bool known = false;
  const auto know = [&](const Activations& input) {
    for (int r = 0; r < rows; ++r) {
      reaches[r] = screen.reach(input, r);
      Best top{-INFINITY, 0, false};
      for (int chunk = 0; chunk < steps; ++chunk) {
        const Best& other = about_[static_cast<std::size_t>(chunk * rows + r)];
        if (other.value > top.value) top = other;
      }
      const int panel = top.token / kLanes;
      float exact[kScreenedRows * kLanes];
      kernels_.matmul(weight, panel, 1, input, 0, rows, exact, kLanes, nullptr, false);
      // What they are about is capped; a cap brings logits no further apart.
      if (shape_.softcap > 0) kernels_.cap(exact, shape_.softcap, std::int64_t{rows} * kLanes);
      floors[r] = -INFINITY;
      for (int i = 0; i < kLanes && panel * kLanes + i < shape_.outputs; ++i)
        if (exact[r * kLanes + i] > floors[r]) floors[r] = exact[r * kLanes + i];
    }
    known = true;
  };
  // What is no number survives.
  const auto survives = [&](int panel) {
    const float* errors = screen.errors() + panel * kLanes;
    for (int r = 0; r < rows; ++r) {
      const float* about = result_.logits->writable(r) + panel * kLanes;
      int left = 0;
      for (int i = 0; i < kLanes; ++i)
        left += about[i] + errors[i] * reaches[r] < floors[r] ? 0 : 1;
      if (left > 0) return true;
    }
    return false;
  };
  with_input(member, rows, width_, needs({weight.format}), head_input(), steps,
             [&](int chunk, const Activations& input) {
               if (!known) know(input);
               count_bytes(logit_bytes(panels_of(chunk), rows + 1));
               Best* best = best_.data() + chunk * rows;
               std::fill(best, best + rows, Best{-INFINITY, -1, false});
               for (int panel = chunk * step; panel < chunk * step + panels_of(chunk); ++panel) {
                 if (!survives(panel)) continue;
                 head_product(weight, panel, 1, input, 0, rows);
                 for (int r = 0; r < rows; ++r)
                   for (int id = panel * kLanes;
                        id < std::min(shape_.outputs, (panel + 1) * kLanes); ++id) {
                     const float value = result_.logits->writable(r)[id];
                     best[r].nan |= std::isnan(value);
                     if (value > best[r].value) best[r].value = value, best[r].token = id;
                   }
               }
             });
}

// The best of all chunks for each row of logits, or -1 where some logit is no number.
std::vector<std::int32_t> Forward::best_tokens() const {
  std::vector<std::int32_t> tokens;
  const std::size_t rows = plan_.logit_rows.size();
  for (std::size_t r = 0; r < rows; ++r) {
    Best best{-INFINITY, -1, false};
    for (std::size_t i = r; i < best_.size(); i += rows) {
      best.nan |= best_[i].nan;
      if (best_[i].value > best.value) best.value = best_[i].value, best.token = best_[i].token;
    }
    tokens.push_back(best.nan || !std::isfinite(best.value) ? -1 : best.token);
  }
  return tokens;
}

}  // namespace paradecode
