"""What is asked of the rows. A method is a Query: public code that the mechanism carries to the rows."""
