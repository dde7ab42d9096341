// Errors that the binding turns into the exceptions of paradecode.core.errors.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <variant>

namespace paradecode {

class InvalidInput : public std::exception {
 public:
  using Value = std::variant<std::monostate, std::int64_t, std::string>;
  InvalidInput(std::string field_name, Value bad, std::string what_to_do)
      : field(std::move(field_name)), value(std::move(bad)), fix(std::move(what_to_do)) {
    message_ = field + ": " + fix;
  }
  const char* what() const noexcept override { return message_.c_str(); }

  std::string field;
  Value value;
  std::string fix;

 private:
  std::string message_;
};

// Throws InvalidInput unless `value` lies between the two bounds, both included.
inline void expect_range(const char* field, std::int64_t value, std::int64_t least,
                         std::int64_t most) {
  if (value < least || value > most)
    throw InvalidInput(field, value,
                       "give " + std::to_string(least) + " to " + std::to_string(most));
}

class BackendError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace paradecode
