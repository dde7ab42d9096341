// The core without Python, to be run under AddressSanitizer, UndefinedBehaviorSanitizer and
// ThreadSanitizer: tiny random models of every format, with one to four threads, on every
// instruction set of the machine. Each file checks one part; a failure ends the program.
#pragma once

#include <cstddef>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "forward.hpp"
#include "model.hpp"

namespace paradecode {

void check_blocks();
void check_forward();
void check_functions();
void check_gemma();
void check_heads();
void check_logits();
void check_networks();
void check_screen();
void check_states();
void check_steps();
void check_team();
void measure_rows();

// Ends the program unless `condition` holds.
void require(bool condition, const char* what);

// The instruction set of what is made from now on; the processor's best if empty.
void use_isa(const std::string& name);

std::vector<float> random_values(std::mt19937& random, std::size_t count, float scale);

// Two layers of odd sizes and 131 tokens; always the same weights.
std::unique_ptr<Model> make_model(Format format, bool half_cache, int threads);

inline const std::vector<LayerPart> kAllLayers = {{0, true, true}, {1, true, true}};

}  // namespace paradecode
