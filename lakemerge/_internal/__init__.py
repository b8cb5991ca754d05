"""What the library's packages share and no user sees."""
