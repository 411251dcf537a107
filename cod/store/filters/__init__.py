"""Filters as conditions: trees of `cod.filters` in SQL, with what people wrote in parameters."""
