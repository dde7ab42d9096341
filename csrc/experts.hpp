// Mixtures of experts: decides to which experts a row is sent, and which rows share a product.
#pragma once

#include <cstddef>
#include <vector>

#include "types.hpp"

namespace paradecode {

enum class Score { Softmax, Sigmoid, Relu };

// As Mixture in models/mixture.py says; no experts: layers have an ordinary MLP.
struct MixtureShape {
  int experts = 0;
  int chosen = 0;
  int expert_size = 0;
  int shared_size = 0;  // width of one more MLP for every row, which counts as the last expert
  bool shared_gated = false;  // its result is multiplied by a sigmoid
  int groups = 1;
  int chosen_groups = 1;
  Score score = Score::Softmax;
  bool bias = false;  // of the choice
  bool logit_bias = false;
  bool expert_bias = false;
  bool scaled = false;  // the router is Gemma 4's
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

// What the router adds, or null.
struct RouterVectors {
  const float* bias = nullptr;  // of the choice
  const float* norm = nullptr;  // gains of rectified scores
  const float* gain = nullptr;  // factors of the experts
};

// The experts of a row and their weights, [chosen] each, from the router's logits [experts]. With
// rectified scores there may be fewer, and -1 in place of the others.
void route(const float* logits, const RouterVectors& vectors, const MixtureShape& shape,
           float epsilon, int* experts, float* weights);

// Rows of one expert that lie side by side, at most `kRowBlock` of a forward.
struct ExpertBlock {
  int expert, place, rows;
};

// Says where each row is computed by each of its experts.
class Routing {
 public:
  // From the `chosen` experts of each row, [rows, chosen], of which -1 is none.
  void plan(const MixtureShape& shape, const int* experts, int rows, int block);
  int places() const { return static_cast<int>(rows_.size()); }
  int row_at(int place) const { return rows_[static_cast<std::size_t>(place)]; }  // -1: none
  // Where the k-th expert of a row works, or -1 for none; the shared one is the last.
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
