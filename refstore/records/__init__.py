"""Keys and stored records of the KV: a module for each subject."""
