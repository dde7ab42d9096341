"""The routes of the API, one family in each file."""
