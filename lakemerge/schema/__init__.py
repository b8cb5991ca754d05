"""Schemas: types, DDL, casts, and how a table's schema changes."""
