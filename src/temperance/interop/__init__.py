"""temperance inside other libraries: each module needs one of them, which comes with the extra of the same name."""
