"""Python code whose attributes exist: a monitor that reads source files and runs none of them."""
