"""One pipeline for requests, below the API and the S3 gateway, of which it knows neither: connections, hosts, bodies,
memory, slots and answers, and the service over the lake.
"""
