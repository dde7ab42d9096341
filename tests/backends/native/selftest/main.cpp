#include "selftest.hpp"

#include <cstdio>

using namespace paradecode;

int main() {
  check_functions();
  check_blocks();
  check_logits();
  check_forward();
  check_screen();
  check_steps();
  check_networks();
  check_heads();
  std::puts("ok");
}
