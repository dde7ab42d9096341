"""The laboratory's commands, one file each: they read options, call other code, and print."""
