"""What is done with an event: the app's keyed processes, and what they are made of."""
