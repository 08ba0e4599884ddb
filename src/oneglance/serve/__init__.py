"""An OpenAI-compatible server, its metrics, and a page to look at a round (``[serve]``)."""
