"""Tests what the server withstands: crowds, hostile requests and hours of load; and compares it."""
