"""Published experiments as recipes: their members, the figures that were published, and the report of a repetition."""
