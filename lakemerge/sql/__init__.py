"""SQL expressions, computed over Arrow as Spark computes them."""
