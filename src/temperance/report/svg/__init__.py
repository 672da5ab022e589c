"""Pictures of a page, drawn as SVG."""
