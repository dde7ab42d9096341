"""The suites: which cases they run, how they judge the outputs, and how they show the result."""
