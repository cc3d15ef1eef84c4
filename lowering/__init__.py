"""Program to program: the passes that type, prove, route, enable and prepare. Read pipeline.py first."""
