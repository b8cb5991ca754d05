"""Sends tables, plans and rows between the driver, its JVM and its tasks."""
