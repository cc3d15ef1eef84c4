"""The findings of a check for people: as text and as a page."""
