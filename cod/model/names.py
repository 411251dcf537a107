"""Patterns of names that several floors check."""

DNS_LABEL = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"  # RFC 1123, in lower case
DNS_NAME = rf"{DNS_LABEL}(\.{DNS_LABEL})*"
