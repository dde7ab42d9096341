"""What all measurements share: prompts, interleaved runs, robust statistics, tables and charts."""
