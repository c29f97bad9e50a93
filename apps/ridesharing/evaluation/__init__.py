"""The app held to data whose right answers are known."""
