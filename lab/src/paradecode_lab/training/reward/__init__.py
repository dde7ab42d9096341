"""A head that scores partial answers, trained on tasks whose answers can be checked."""
