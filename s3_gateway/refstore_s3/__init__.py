"""The S3 gateway: tools that speak S3 read and write branches, at `s3://REPOSITORY/BRANCH/PATH`.

It is an ASGI application of its own on a port of its own, beside the HTTP API and over the same SDK. What it cannot do
it refuses with `NotImplemented`.
"""
