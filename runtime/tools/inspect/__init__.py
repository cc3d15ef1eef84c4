"""What a program's attention does, how it is routed and what it serves, for people: as text and as a page."""
