"""From a unit to a library: tracing, the compiler, and what their results depend on."""
