"""This machine: folders, processes, Java and the jars; nothing here knows a stream."""
