"""The HTTP API: reserved, nothing is here yet.

What will be: `create_app(settings)`, which returns a FastAPI application over `refstore.repository`, with handlers of two or three
lines, models of requests and answers, and one table from the error tree to HTTP. `fastapi` is imported in this package only.
"""
