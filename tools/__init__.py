"""What the developers of Paradecode run: it is not part of the package."""
