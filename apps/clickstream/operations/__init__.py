"""What operators do: commands, and what these stand on."""
