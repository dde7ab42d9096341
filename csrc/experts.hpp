// Mixtures of experts: decides to which experts a row is sent, and which rows share a product.
#pragma once

#include <cstddef>
#include <vector>

#include "types.hpp"

namespace paradecode {

// Settings as in Mixture of models/mixture.py. Without experts the layers have an ordinary MLP.
struct MixtureShape {
  int experts = 0;
  int chosen = 0;
  int expert_size = 0;
  int shared_size = 0;  // width of one more MLP for every row, which counts as the last expert
  int groups = 1;
  int chosen_groups = 1;
  bool sigmoid = false;
  bool biased_weights = false;
  bool normalised = false;
  float scale = 1.0F;

  // Throws InvalidInput if the settings do not fit together.
  void check() const;
  int all() const { return experts + (shared_size > 0 ? 1 : 0); }
  int size(int expert) const { return expert < experts ? expert_size : shared_size; }
  // Returns the number of rows with which an expert gets `block` rows on average.
  int rows_for(int block) const { return block * ((experts + chosen - 1) / chosen); }
  // Returns an upper bound of the places for the rows of all experts. The places of each expert
  // begin at a whole kRowGroup.
  int most_places(int rows) const;
};

// Returns the experts of a row and their weights, [chosen] each, from the router's logits
// [experts].
void route(const float* logits, const float* bias, const MixtureShape& shape, int* experts,
           float* weights);

// Rows of one expert that lie side by side, at most `kRowBlock` of a forward.
struct ExpertBlock {
  int expert, place, rows;
};

// Says where each row is computed by each of its experts.
class Routing {
 public:
  // Assigns places from the `chosen` experts of each row, [rows, chosen].
  void plan(const MixtureShape& shape, const int* experts, int rows, int block);
  int places() const { return static_cast<int>(rows_.size()); }
  // -1 if no row is there
  int row_at(int place) const { return rows_[static_cast<std::size_t>(place)]; }
  // Returns the place of a row at its k-th expert; the shared expert is the last.
  int place_of(int row, int k) const {
    return places_[static_cast<std::size_t>(row) * width_ + static_cast<std::size_t>(k)];
  }
  const std::vector<ExpertBlock>& blocks() const { return blocks_; }

 private:
  std::size_t width_ = 0;
  std::vector<int> rows_;
  std::vector<int> places_;
  std::vector<ExpertBlock> blocks_;
};

}  // namespace paradecode
