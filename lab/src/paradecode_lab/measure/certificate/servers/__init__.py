"""The certificate of a server's speculation, which is compared with the server's plain answers."""
