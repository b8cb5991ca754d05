"""The file formats that ingest reads, one module each."""
