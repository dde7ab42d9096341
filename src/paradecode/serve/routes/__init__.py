"""The routes of the API, one family a file."""
