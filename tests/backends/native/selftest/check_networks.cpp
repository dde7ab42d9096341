#include "selftest.hpp"

#include <algorithm>

#include "isa.hpp"
#include "network.hpp"
#include "network_run.hpp"

namespace paradecode {

// Items that share a call get the bits that each gets alone, on every instruction set.
void check_networks() {
  std::mt19937 random(11);
  const auto numbers = [&](std::size_t count) { return random_values(random, count, 1.0F); };
  const std::vector<float> square = numbers(64);
  const std::vector<float> row = numbers(8);
  const std::vector<float> last = numbers(24);
  const std::vector<NetworkTensor> tensors = {
      {8, 8, square.data()}, {1, 8, row.data()}, {8, 3, last.data()}};
  const std::vector<NetworkStep> steps = {
      {StepKind::Linear, {0}, {0}},
      {StepKind::Scale, {0}, {1}},
      {StepKind::Attention, {3, 4, 0, 1, 2}, {}, 2, 10000.0F},
      {StepKind::Add, {0, 5}, {}},
      {StepKind::Linear, {6}, {2}},
      {StepKind::Sigmoid, {7}, {}},
  };
  const std::vector<std::int64_t> ends = {1, 6, 6, 40};
  const std::vector<float> x = numbers(40 * 8);
  std::vector<std::int64_t> places(40);
  std::vector<std::int64_t> groups(40);
  for (std::int64_t i = 0; i < 40; ++i) {
    places[static_cast<std::size_t>(i)] = i;
    groups[static_cast<std::size_t>(i)] = i / 3;
  }
  std::vector<float> expected;
  for (const std::string& isa : available_isas()) {
    use_isa(isa);
    const Network network({8, 0, 0}, steps, tensors);
    std::vector<float> together(40 * 3);
    network.run({{x.data(), nullptr}, {nullptr, places.data()}, {nullptr, groups.data()}}, ends,
                together.data());
    if (expected.empty()) expected = together;
    require(together == expected, "instructions do not change a network's bits");
    std::int64_t first = 0;
    for (const std::int64_t end : ends) {
      std::vector<float> alone(static_cast<std::size_t>((end - first) * 3));
      network.run({{x.data() + first * 8, nullptr},
                   {nullptr, places.data() + first},
                   {nullptr, groups.data() + first}},
                  {end - first}, alone.data());
      require(std::equal(alone.begin(), alone.end(), together.begin() + first * 3),
              "nor do the items that share a call");
      first = end;
    }
  }
  use_isa("");
}

}  // namespace paradecode
