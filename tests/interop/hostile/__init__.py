"""Hostile input by the classes of docs/security.md: one file of tables per group of classes."""
