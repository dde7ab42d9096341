"""Regular languages as automata over tokens, for methods that decide tokens in any order."""
