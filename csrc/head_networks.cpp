#include "head_networks.hpp"

#include <algorithm>
#include <cmath>
#include <string>

#include "errors.hpp"
#include "types.hpp"

namespace paradecode {
namespace {

constexpr int kMostHeads = 1024;

[[noreturn]] void refuse(const char* what, std::int64_t value) {
  throw InvalidInput("head", value, std::string("the sizes of its ") + what + " do not fit");
}

bool fits(const Network& network, const std::vector<int>& inputs, int result) {
  const std::vector<int> known(network.widths().begin(),
                               network.widths().begin() + network.inputs());
  return network.rows_are_apart() && known == inputs &&
         (result == 0 || network.widths().back() == result);
}

}  // namespace

void HeadNetworks::check() const {
  expect_range("width of a head", width, 1, 1 << 20);
  const auto absent = [](const auto& network) { return network == nullptr; };
  if (absent(enter) || std::any_of(outs.begin(), outs.end(), absent) ||
      std::any_of(blocks.begin(), blocks.end(), [&](const HeadBlock& block) {
        return absent(block.before) || absent(block.after);
      }))
    throw InvalidInput("head", std::monostate(), "give all of its networks");
  if (enter->inputs() != 1 || features() < 1 || !fits(*enter, {features()}, width))
    refuse("first network", features());
  if (back != nullptr && !fits(*back, {width}, width)) refuse("back", width);
  if (outs.empty() || outs.size() > kMostDepth || (outs.size() > 1 && !blocks.empty()))
    refuse("outs", static_cast<std::int64_t>(outs.size()));
  const int vocabulary = outs[0]->widths().back();
  for (const auto& out : outs)
    if (!fits(*out, {width}, vocabulary)) refuse("outs", out->widths().back());
  for (std::size_t b = 0; b < blocks.size(); ++b) check_block(b);
  if (!to_target.empty() && to_target.size() != static_cast<std::size_t>(vocabulary))
    refuse("to_target", static_cast<std::int64_t>(to_target.size()));
  if (!mask.empty() &&
      (mask.size() != static_cast<std::size_t>(features()) || blocks.empty() || outs.size() != 1))
    refuse("mask", static_cast<std::int64_t>(mask.size()));
  if (blocks.empty()) return;
  // Every token that may enter must have a row in the table.
  std::vector<std::int64_t> entering(to_target.begin(), to_target.end());
  if (entering.empty()) entering = {vocabulary - 1};
  if (!mask.empty()) entering = {mask_token};
  blocks[0].before->check_ids(1, entering.data(), static_cast<std::int64_t>(entering.size()));
}

void HeadNetworks::check_block(std::size_t b) const {
  const HeadBlock& block = blocks[b];
  expect_range("heads", block.heads, 1, kMostHeads);
  expect_range("kv_heads", block.kv_heads, 1, block.heads);
  expect_range("size", block.size, 2, kMostHeadSize);
  const int attended = block.heads * block.size;
  const int narrow = block.kv_heads * block.size;
  const auto same = [&](const std::vector<float>& gain) {
    return gain.empty() || static_cast<int>(gain.size()) == round_up(block.size, kLanes);
  };
  const std::vector<int> entering = b == 0 ? std::vector<int>{width, 0} : std::vector<int>{width};
  const int rest = after_rest(b);
  if (block.heads % block.kv_heads != 0 || block.size % 2 != 0 ||
      block.kv_heads != blocks[0].kv_heads || block.heads != blocks[0].heads ||
      block.size != blocks[0].size || !same(block.q_norm) || !same(block.k_norm) ||
      static_cast<int>(block.frequencies.size()) != block.size / 2 || rest < 1 ||
      !fits(*block.before, entering, attended + 2 * narrow + rest) ||
      !fits(*block.after, {attended, rest}, width))
    refuse("blocks", static_cast<std::int64_t>(b));
  for (const double frequency : block.frequencies)
    if (!std::isfinite(frequency) || std::fabs(frequency) > 2)
      throw InvalidInput("frequencies", std::monostate(), "give finite numbers of at most 2");
}

}  // namespace paradecode
