"""The same answers by fewer or smaller products, and values on the way made outputs."""
