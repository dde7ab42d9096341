#include "selftest.hpp"

#include <cstdio>

#include "isa.hpp"

using namespace paradecode;

int main() {
  check_team();
  check_functions();
  check_blocks();
  check_logits();
  check_forward();
  check_screen();
  check_gemma();
  check_states();
  check_steps();
  check_networks();
  check_heads();
  for (const std::string& isa : available_isas()) std::printf("%s ", isa.c_str());
  std::puts("ok");
}
