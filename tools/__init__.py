"""Programs for the developers of Paradecode, which are not part of the package."""
