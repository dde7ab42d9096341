"""Train draft heads: write texts with the target, record its states, and train networks on them."""
