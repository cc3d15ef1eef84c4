"""One model in parts, a device each: heads and products shared out, and one sum over the devices after each."""
