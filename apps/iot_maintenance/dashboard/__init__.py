"""The app's page of the dashboard."""
