"""What a process is told: settings, where logs go, and how a configured lake is opened."""
