"""Claims, figures and the HTML page of a study: values in, strings out."""
