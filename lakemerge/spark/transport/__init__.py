"""How tables, plans and rows get between the driver, its JVM and its tasks."""
