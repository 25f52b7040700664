"""Hold a part of ceph/s3-tests, the public conformance suite for S3, which no registry has."""
