"""What the server is put through: crowds, hostile requests, hours of load, and its peers."""
