"""The folders that jobs share as `/storage`, and the access of clients to them."""
