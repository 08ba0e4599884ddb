"""Drawing of the suite's pages: one file per kind of page."""
