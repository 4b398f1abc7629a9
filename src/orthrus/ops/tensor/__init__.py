"""Operators that make, move, choose and convert elements, text among them."""
