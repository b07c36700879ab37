"""`baton serve`: a pair and its routers behind an OpenAI-compatible endpoint."""
