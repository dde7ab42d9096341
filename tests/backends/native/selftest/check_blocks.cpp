#include "selftest.hpp"

#include <algorithm>
#include <cmath>

#include "isa.hpp"
#include "pack.hpp"

namespace paradecode {

namespace {

// Random blocks of every kind: packed and unpacked they are what the file said, and a product is
// the same whatever rows share it, on all instruction sets.
void check_source(Source source) {
  constexpr int rows = 64;  // Panels come in pairs.
  constexpr int cols = 512;
  constexpr int most = 75;  // more rows than one call multiplies by tiles
  const BlockShape shape = block_shape(source);
  std::mt19937 random(static_cast<unsigned>(source));
  const std::size_t bytes = source_row_bytes(source, cols);
  std::vector<std::uint8_t> file(rows * bytes);
  for (auto& byte : file) byte = static_cast<std::uint8_t>(random() & 0x3FU);  // no huge factors
  if (source == Source::MXFP4)  // A block begins with its exponent.
    for (std::size_t at = 0; at < file.size(); at += 17) file[at] = 120 + file[at] % 8;
  Arena arena;
  const Matrix packed = make_matrix(arena, own_format(source), rows, cols);
  const Matrix plain = make_matrix(arena, Format::F32, rows, cols);
  std::vector<float> expected(cols);
  std::vector<float> got(cols);
  for (int row = 0; row < rows; ++row) {
    const std::uint8_t* from = file.data() + static_cast<std::size_t>(row) * bytes;
    pack_row(packed, row, source, from);
    pack_row(plain, row, source, from);
    unpack_row(packed, row, got.data());
    unpack_row(plain, row, expected.data());
    require(got == expected, "packing loses nothing");
  }
  // An exponent of MXFP4 has one byte in the file, and two as a scale.
  const std::size_t percent = source == Source::MXFP4 ? 106 : 102;
  const std::size_t stored = static_cast<std::size_t>(packed.panels) * packed.panel_bytes;
  require(stored * 100 <= file.size() * percent, "packed weights are about as large as the file's");
  require(shape.size >= kGroup, "blocks are whole groups");
  std::vector<float> first;
  for (const std::string& isa : available_isas()) {
    use_isa(isa);
    const Kernels& kernels = *choose_isa().kernels;
    InputBuffer buffer;
    const Activations& input = buffer.shape(most, cols);
    std::mt19937 same(7);
    for (int row = 0; row < most; ++row) {
      const std::vector<float> values = random_values(same, cols, 1.0F);
      kernels.quantise(values.data(), 0, cols / kGroup, row, input);
      kernels.quantise_wide(values.data(), 0, cols / kSuperBlock, row, input);
    }
    std::vector<float> together(most * rows);
    kernels.matmul(packed, 0, rows / kLanes, input, 0, most, together.data(), rows, nullptr, false);
    for (const int count : {1, 2, 3, 4, 5, 6, 7, 8, 9, 15, 16, 18, 27, 64, 70}) {
      std::vector<float> alone(most * rows);
      kernels.matmul(packed, 0, rows / kLanes, input, 0, count, alone.data(), rows, nullptr, false);
      require(std::equal(alone.begin(), alone.begin() + count * rows, together.begin()),
              "a product does not depend on the rows beside it");
    }
    if (first.empty()) first = together;
    require(together == first, "nor on the instructions");
  }
}

// Inputs with one value that is a thousand times the others: only its group is rounded by it. A
// product differs from that of the weights by as much as this rounding can make it.
void check_outlier(Source source) {
  constexpr int rows = 2 * kLanes;
  constexpr int cols = kSuperBlock;
  std::mt19937 random(3);
  std::vector<std::uint8_t> file(rows * source_row_bytes(source, cols));
  for (auto& byte : file) byte = static_cast<std::uint8_t>(random() & 0x3FU);
  Arena arena;
  const Matrix packed = make_matrix(arena, own_format(source), rows, cols);
  InputBuffer buffer;
  const Activations& input = buffer.shape(1, cols);
  std::vector<float> values = random_values(random, cols, 1.0F);
  values[5] = 1000.0F;
  choose_isa().kernels->quantise_wide(values.data(), 0, 1, 0, input);
  std::vector<float> got(rows);
  std::vector<float> weights(cols);
  for (int row = 0; row < rows; ++row)
    pack_row(packed, row, source, file.data() + row * source_row_bytes(source, cols));
  choose_isa().kernels->matmul(packed, 0, 2, input, 0, 1, got.data(), rows, nullptr, false);
  for (int row = 0; row < rows; ++row) {
    unpack_row(packed, row, weights.data());
    double expected = 0;
    double most = 0;
    for (int i = 0; i < cols; ++i) {
      const double weight = std::abs(double{weights[static_cast<std::size_t>(i)]});
      expected +=
          double{weights[static_cast<std::size_t>(i)]} * values[static_cast<std::size_t>(i)];
      most += weight * (i < kGroup ? 1000.0 : 5.0) / 127.0 * 0.51;
    }
    require(std::abs(got[static_cast<std::size_t>(row)] - expected) < most,
            "an outlier spoils the precision of its group alone");
  }
}

}  // namespace

void check_blocks() {
  for (const Source source : {Source::Q3_K, Source::Q6_K, Source::IQ4_XS}) check_outlier(source);
  for (int source = 0; source < kSources; ++source)
    if (!is_float(static_cast<Source>(source))) check_source(static_cast<Source>(source));
  for (const std::string& isa : available_isas()) {
    use_isa(isa);
    require(choose_isa().kernels->multiply(3) == portable::kernels.multiply(3),
            "peaks are measured with the same products");
  }
  use_isa("");
}

}  // namespace paradecode
