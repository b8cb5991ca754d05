"""Rules in SQL: what they mean, checked and computed. Only this package of ``mergers`` uses :mod:`lakemerge.sql`, so it
is imported when a table with rules is."""
