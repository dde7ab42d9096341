#include "selftest.hpp"

#include <algorithm>
#include <cmath>

#include "errors.hpp"
#include "isa.hpp"
#include "logits.hpp"

namespace paradecode {

namespace {

// What is computed of many rows, some of them changed, by as many threads.
std::vector<double> reduce(const std::string& isa, int threads) {
  use_isa(isa);
  constexpr int kRows = 48;
  constexpr int kVocabulary = 4001;
  LogitRows logits(std::make_shared<LogitStore>(), *choose_isa().kernels, Team::of(threads), kRows,
                   kVocabulary);
  std::mt19937 random(3);
  for (int r = 0; r < kRows; ++r) {
    const auto values = random_values(random, kVocabulary, 4.0F);
    float* row = logits.writable(r);
    std::copy(values.begin(), values.end(), row);
    std::fill(row + kVocabulary, row + LogitRows::stride_for(kVocabulary), -INFINITY);
  }
  std::vector<std::int64_t> every(kRows);
  for (int r = 0; r < kRows; ++r) every[static_cast<std::size_t>(r)] = r;
  const auto changed = logits.select(every.data(), kRows);
  for (int r = 0; r < kRows; ++r) {
    const std::int32_t ids[] = {logits.argmax(r), 7, 7};
    const float added[] = {-INFINITY, 1.0F, 2.0F};
    changed->add(r, ids, added, 3);
    changed->add(r, ids + 1, added + 1, 1);
    require(changed->argmax(r) != ids[0], "a banned token is not chosen");
    require(changed->value(r, 7) == (logits.value(r, 7) + 2.0F) + 1.0F, "changes add up");
    require(changed->read(r)[7] == changed->value(r, 7), "and are read");
    require(std::isfinite(logits.read(r)[ids[0]]), "the original keeps its values");
  }
  std::vector<double> out(4 * kRows);
  const LogitRows* both[] = {changed.get(), &logits};
  for (const LogitRows* of : both)
    of->for_each([&](int r) {
      double* mine = out.data() + 4 * r;
      mine[0] += of->sample(r, {0.8, 0, 1, 0}, 5) + of->sample(r, {0.8, 9, 0.9, 0.01}, 6);
      mine[1] += of->log_normalizer(r);
      mine[2] += of->entropy(r);
      mine[3] += of->margin(r);
    });
  logits.writable(9)[3] = NAN;
  bool refused = false;
  try {
    logits.for_each([&](int r) { logits.argmax(r); });
  } catch (const BackendError&) {
    refused = true;
  }
  require(refused, "the error of a row reaches the caller, whichever thread found it");
  return out;
}

}  // namespace

void check_logits() {
  const auto reduced = reduce("portable", 1);
  for (const std::string& isa : available_isas())
    for (const int threads : {1, 2, 4})
      require(reduce(isa, threads) == reduced, "neither threads nor instructions change bits");
  use_isa("");
}

}  // namespace paradecode
