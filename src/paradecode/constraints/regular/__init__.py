"""Regular constraints as automata over tokens, for methods that decide tokens in any order."""
