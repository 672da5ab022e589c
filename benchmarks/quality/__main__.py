"""`python -m benchmarks.quality`; what it does is in a module of its own, which other processes can import."""

from benchmarks.quality.measuring import main

if __name__ == "__main__":
    main()
