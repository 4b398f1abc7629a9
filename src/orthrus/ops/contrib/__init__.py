"""Operators of com.microsoft."""
