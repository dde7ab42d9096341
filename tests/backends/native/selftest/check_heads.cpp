#include "selftest.hpp"

#include <memory>

#include "errors.hpp"
#include "head.hpp"
#include "isa.hpp"

namespace paradecode {

// A head's trees do not depend on instructions, threads, company or how rows came in; and bad input
// is refused.
void check_heads() {
  std::mt19937 random(17);
  const auto numbers = [&](std::size_t count) { return random_values(random, count, 1.0F); };
  constexpr int kFeatures = 16;
  constexpr int kWidth = 24;
  constexpr int kTokens = 40;
  const auto into = numbers(kFeatures * kWidth);
  const auto table = numbers(kTokens * kWidth);
  const auto queries = numbers(2 * kWidth * 16);
  const auto keys = numbers(2 * kWidth * 8);
  const auto mixed = numbers(16 * kWidth);
  const auto last = numbers(kWidth * kTokens);
  const auto features = numbers(300 * kFeatures);
  std::vector<std::int64_t> tokens;
  for (int i = 0; i < 300; ++i) tokens.push_back(i * 7 % kTokens);
  const auto make = [&](Format format) {
    const auto network = [&](std::vector<int> widths, std::vector<NetworkStep> steps,
                             const std::vector<NetworkTensor>& tensors) {
      return std::make_shared<const Network>(std::move(widths), std::move(steps), tensors, format);
    };
    HeadNetworks out;
    out.width = kWidth;
    out.enter =
        network({kFeatures}, {{StepKind::Linear, {0}, {0}}}, {{kFeatures, kWidth, into.data()}});
    HeadBlock block;
    block.before = network({kWidth, 0},
                           {{StepKind::Lookup, {1}, {0}},
                            {StepKind::Join, {2, 0}, {}},
                            {StepKind::Linear, {3}, {1}},
                            {StepKind::Linear, {3}, {2}},
                            {StepKind::Join, {4, 5, 5, 0}, {}}},
                           {{kTokens, kWidth, table.data()},
                            {2 * kWidth, 16, queries.data()},
                            {2 * kWidth, 8, keys.data()}});
    block.after = network({16, kWidth}, {{StepKind::Linear, {0}, {0}}, {StepKind::Add, {2, 1}, {}}},
                          {{16, kWidth, mixed.data()}});
    block.heads = 2;
    block.kv_heads = 1;
    block.size = 8;
    block.frequencies = {1.0, 0.1, 0.01, 0.001};
    out.blocks = {block};
    out.outs = {
        network({kWidth}, {{StepKind::Linear, {0}, {0}}}, {{kWidth, kTokens, last.data()}})};
    return out;
  };
  const TreeLimits limits{12, 3, 4, 0.0, {}, {}};
  const TreeLimits noisy{9, 4, 3, 0.0, {0.8, 20, 0.95, 0.0}, {1, 2, 3}};
  const auto input = [&](const std::shared_ptr<HeadMemory>& memory, std::int64_t first,
                         std::int64_t end, const TreeLimits& wanted) {
    return HeadInput{memory.get(),
                     first,
                     features.data() + first * kFeatures,
                     {tokens.begin() + first, tokens.begin() + end},
                     first,
                     wanted};
  };
  const auto same = [](const DraftTree& a, const DraftTree& b) {
    return a.tokens == b.tokens && a.parents == b.parents && a.chances == b.chances;
  };
  for (const Format format : {Format::F32, Format::Q8}) {
    std::vector<DraftTree> expected;
    for (const std::string& isa : available_isas()) {
      use_isa(isa);
      for (const int threads : {1, 2, 4}) {
        DraftHead head(make(format), threads);
        const auto one = head.memory();
        const auto other = head.memory();
        head.draft({input(one, 0, 5, noisy), input(other, 0, 260, limits)});
        const auto trees =
            head.draft({input(one, 5, 299, limits), input(other, 260, 300, noisy)}).first;
        if (expected.empty()) expected = trees;
        require(trees[0].tokens.size() == 12 && same(trees[0], expected[0]) &&
                    same(trees[1], expected[1]),
                "instructions and threads do not change a head's tree");
        const auto alone = head.memory();
        require(same(head.draft({input(alone, 0, 299, limits)}).first[0], expected[0]),
                "nor do company and pieces");
        try {
          head.draft({input(alone, 299, 300, limits), input(alone, 299, 300, limits)});
          require(false, "a memory serves one request");
        } catch (const InvalidInput&) {
        }
      }
    }
  }
  use_isa("");
}

}  // namespace paradecode
