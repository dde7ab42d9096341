"""The routes of the API, with one family of routes in each file."""
