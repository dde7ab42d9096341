#include "head_input.hpp"

#include <utility>

#include "errors.hpp"

namespace paradecode {
namespace {

std::vector<CacheLayer> layers_of(const HeadNetworks& networks) {
  std::vector<CacheLayer> out;
  for (const HeadBlock& block : networks.blocks) out.push_back({block.kv_heads, block.size, 0});
  return out;
}

}  // namespace

HeadMemory::HeadMemory(const HeadNetworks& networks, std::shared_ptr<const void> made_by)
    : maker(std::move(made_by)),
      cache(layers_of(networks), networks.enter->format() != Format::F32) {}

void HeadMemory::need(std::int64_t slots) {
  cache.grow((slots + kPage - 1) / kPage);
  for (auto page = static_cast<std::int32_t>(pages.size()); page < cache.pages(); ++page)
    pages.push_back(page);
}

void HeadInput::check(const HeadNetworks& networks) const {
  const auto rows = static_cast<std::int64_t>(tokens.size());
  expect_range("rows of a draft", rows, 1, kMostHeadRows);
  expect_range("start", start, 0, kMostHeadRows - rows);
  expect_range("length of a memory", length, 0,
               networks.blocks.empty() ? kMostHeadRows : memory->known);
  expect_range("count", limits.count, 1, 1 << 16);
  expect_range("width", limits.width, 1, 1 << 8);
  expect_range("depth", limits.depth, 1, kMostDepth);
  if (!networks.blocks.empty()) networks.blocks[0].before->check_ids(1, tokens.data(), rows);
}

}  // namespace paradecode
