"""One page for each kind of result; each is a pure function of it."""
