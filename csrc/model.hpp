// A loaded model and its forward pass.
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "cache.hpp"
#include "isa.hpp"
#include "logits.hpp"
#include "memory.hpp"
#include "plan.hpp"
#include "profile.hpp"
#include "screen.hpp"
#include "shape.hpp"
#include "states.hpp"
#include "team.hpp"
#include "traffic.hpp"
#include "types.hpp"
#include "weights.hpp"

namespace paradecode {

struct ForwardResult {
  std::shared_ptr<LogitRows> logits;       // of all spans, in their order
  std::vector<std::vector<float>> hidden;  // span after span, layer after layer: [rows, D]
  // Of spans that ask, attention after attention: [rows asked for, heads, tokens].
  std::vector<std::vector<float>> attention;
};

class Forward;

class Model {
 public:
  // `apart`: its forwards run beside those of other models.
  Model(ModelShape shape, bool half_cache, int threads, bool apart = false);

  // Loading: vectors are always float32.
  ModelWeights& weights() { return weights_; }
  void finish_loading(bool tied_head);

  void reserve(std::int64_t pages);
  // Of layers with a state: pages of records, and slots of states.
  void reserve_states(std::int64_t records, std::int64_t slots);
  // Runs `layers` in their order. Throws InvalidInput when anything is out of range; nothing was
  // stored then. `only_best`: of the logits only the argmax will be asked.
  ForwardResult forward(const std::vector<SpanInput>& spans, const std::vector<LayerPart>& layers,
                        bool only_best = false);
  // In the layers with a window; -1: in all. kStates: records of layers with a state.
  static constexpr int kStates = -2;
  void copy(const std::int64_t* source, const std::int64_t* target, std::int64_t count,
            int window = -1);

  const ModelShape& shape() const { return shape_; }
  const IsaChoice& isa() const { return isa_; }
  int threads() const { return team_->size(); }
  // Of keys and values: what the system has given so far.
  std::size_t cache_bytes() const { return cache_.taken(); }
  // What one row costs at a matrix: bytes read (by all rows of a forward together), and products
  // of bytes (0 where the matrix holds floats).
  std::pair<std::size_t, std::size_t> work_of(const std::string& tensor) const;
  // Of each window, the bytes of one token in its layers.
  std::vector<std::pair<int, std::size_t>> slot_bytes() const {
    std::vector<std::pair<int, std::size_t>> out;
    for (const int window : cache_.windows()) out.emplace_back(window, cache_.slot_bytes(window));
    return out;
  }

  // Takes the time of forwards from now on, or stops; returns the seconds of each part so far,
  // means of all threads, that add up to the duration of the forwards.
  PartSeconds profile(bool on);
  // Counts the bytes of forwards from now on, or stops; returns the forwards so far.
  std::vector<Traffic> traffic(bool on);

 private:
  friend class Forward;
  void add_profile();
  void add_traffic(const Plan& plan, std::uint64_t bytes, std::int64_t experts);
  void make_screen();
  void check_parts(const std::vector<SpanInput>& spans, const std::vector<LayerPart>& layers) const;

  ModelShape shape_;
  IsaChoice isa_;
  std::shared_ptr<Team> team_;
  Cache cache_;
  StateStore states_;
  ModelWeights weights_;
  std::unique_ptr<Screen> screen_;
  bool loaded_ = false;

  std::mutex busy_;  // one forward or copy at a time
  struct Workspace;
  std::shared_ptr<Workspace> workspace_;
  bool profiling_ = false;
  PartSeconds profile_{};
  bool counting_ = false;
  std::vector<Traffic> traffic_;
  std::shared_ptr<LogitStore> logit_store_;
};

}  // namespace paradecode
