// How the last guess of a canvas enters a model that refines random tokens.
#include <algorithm>

#include "exact.hpp"
#include "forward_products.hpp"

namespace paradecode {
namespace {

// Rows that share what is unpacked, and tokens that are unpacked together, which a cache of the
// second level holds.
constexpr int kGuessRows = 256;
constexpr int kGuessTokens = 64;
// What the least likely tokens of a guess may have together, which are left out.
constexpr double kLeftOut = 1e-4;
// Beyond so many nats below the best token all are alike.
constexpr int kNats = 64;

// Logits from here on are not left out: each of the others is counted with the largest that it may
// have, and the best token with 1.
float least_logit(const float* logits, int count, float top) {
  int counts[kNats] = {};
  for (int i = 0; i < count; ++i) {
    const float below = top - logits[i];
    if (below >= 0 && below < kNats) ++counts[static_cast<int>(below)];
  }
  double left = count * exact_exp(-kNats);
  int nats = kNats;
  for (; nats > 1; --nats) {
    left += counts[nats - 1] * exact_exp(1.0 - nats);
    if (left > kLeftOut) break;
  }
  return top - static_cast<float>(nats);
}

// One row of a guess.
struct Likely {
  const float* logits;
  float top, least;
  double mass;  // of all tokens that are not left out, the best one's being 1
};

double weight(const Likely& guess, float logit) {
  return exact_exp(static_cast<double>(logit) - static_cast<double>(guess.top));
}

}  // namespace

void Forward::plan_guesses() {
  for (std::size_t i = 0; i < inputs_.size(); ++i)
    for (int r = 0; inputs_[i].guess != nullptr && r < plan_.spans[i].rows; ++r)
      guesses_.push_back({plan_.spans[i].first_row + r, inputs_[i].guess, r});
  // Rows without a guess go through its MLP as well.
  if (!guesses_.empty()) std::fill(states_, states_ + count(plan_.rows, width_), 0.0F);
}

// Leaves in `made_` what the guesses say, and nothing for other rows.
void Forward::read_guesses(Member& member) {
  member.enter(Part::Embed);
  const auto rows = guesses_.size();
  const auto share = std::min<std::size_t>(
      kGuessRows, std::max<std::size_t>(1, rows / static_cast<std::size_t>(model_.team_->size())));
  member.phase(static_cast<int>((rows + share - 1) / share), [&](int chunk) {
    const std::size_t first = static_cast<std::size_t>(chunk) * share;
    mean_embeddings(first, std::min(rows, first + share));
  });
  const ModelWeights& w = model_.weights_;
  feed_dense(member, {w.guess, shape_.guess().activation}, w.guess_norm, {made_, false});
}

// The mean of all tokens' embeddings under the guesses [first, end), as the states of their rows.
void Forward::mean_embeddings(std::size_t first, std::size_t end) {
  const int tokens = shape_.vocab_size;
  const std::size_t rows = end - first;
  std::vector<Likely> likely(rows);
  std::vector<std::vector<float>> kept(rows);  // Changed logits are good for one row at a time.
  for (std::size_t r = 0; r < rows; ++r) {
    const Guess& guess = guesses_[first + r];
    Likely& own = likely[r];
    own.logits = guess.logits->read(guess.at);
    if (guess.logits->changed(guess.at)) {
      kept[r].assign(own.logits, own.logits + tokens);
      own.logits = kept[r].data();
    }
    own.top = *std::max_element(own.logits, own.logits + tokens);
    own.least = least_logit(own.logits, tokens, own.top);
    own.mass = 0;
    for (int token = 0; token < tokens; ++token)
      if (!(own.logits[token] < own.least)) own.mass += weight(own, own.logits[token]);
  }
  const auto width = static_cast<std::size_t>(width_);
  std::vector<float> embeddings(kGuessTokens * width, 0.0F);
  std::vector<float> shares(kGuessTokens);
  std::vector<const float*> chosen(kGuessTokens);
  for (int begin = 0; begin < tokens; begin += kGuessTokens) {
    const int until = std::min(tokens, begin + kGuessTokens);
    bool known[kGuessTokens] = {};
    for (std::size_t r = 0; r < rows; ++r) {
      std::size_t found = 0;
      for (int token = begin; token < until; ++token) {
        const float logit = likely[r].logits[token];
        if (logit < likely[r].least) continue;
        float* embedding = embeddings.data() + static_cast<std::size_t>(token - begin) * width;
        if (!known[token - begin]) unpack_row(model_.weights_.embed, token, embedding);
        known[token - begin] = true;
        shares[found] = static_cast<float>(weight(likely[r], logit) / likely[r].mass);
        chosen[found++] = embedding;
      }
      float* out = state(guesses_[first + r].row);
      if (found > 0)
        kernels_.add_rows(chosen.data(), static_cast<int>(found), {shares.data(), 0, 1}, width_,
                          &out, 1);
    }
  }
  for (std::size_t r = 0; r < rows; ++r) {
    float* out = state(guesses_[first + r].row);
    for (int i = 0; i < shape_.hidden_size; ++i) out[i] *= shape_.embed_factor;
  }
}

// Adds what the guess says of a row of a canvas to its token's embedding.
void Forward::begin_canvas(int row) {
  float* out = state(row);
  if (!guesses_.empty())
    for (int i = 0; i < shape_.hidden_size; ++i) out[i] += made(row)[i];
  kernels_.rms_norm(out, model_.weights_.ones, shape_.hidden_size, width_, shape_.norm_epsilon,
                    out);
}

}  // namespace paradecode
