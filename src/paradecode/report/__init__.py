"""What people look at: coloured text in the terminal, tables, pages."""
