"""The API's routes, with one module per resource."""
