"""The laboratory of Paradecode: training, measuring, replay, tuning and certificates."""
