"""What every other part of refstore uses: names, keys, records, settings, time."""
