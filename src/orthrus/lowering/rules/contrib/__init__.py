"""Rules of com.microsoft's own operators."""
