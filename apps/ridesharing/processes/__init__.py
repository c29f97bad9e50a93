"""The app's keyed processes, and the logic that they are made of."""
