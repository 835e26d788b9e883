"""What is in a store, for people: a table, or a page with plots."""
