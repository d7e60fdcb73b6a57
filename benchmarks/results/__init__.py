"""The pages of results: runs kept in a file per page, tables and pictures written from them, the papers' figures."""
