"""Reports: tables, figures and one html page, derived from records and nothing else. Measures nothing, prints nothing."""
