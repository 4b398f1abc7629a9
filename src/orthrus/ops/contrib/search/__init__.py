"""Operators of com.microsoft that write tokens: they run a decoder, which is a graph inside the node, again
and again, each time with what it left in the cache."""
