"""What every other part of refstore uses: names and ids, time, the safety durations, documents, tokens, logs."""
