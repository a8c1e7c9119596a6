"""Results on disk: manifests and atomic publishing, and arrays in zarr."""
