"""The same answers by fewer or smaller products, or within few bits, and values on the way made outputs."""
