"""The laboratory's commands, one file each, thin over its rooms."""
