"""Transactions on rows: updates, deletes and merges that read, decide and write as one commit.

They write what the state of each key is, so they mean the same under every merger. Source: docs/merge-semantics.md,
section 11.
"""
