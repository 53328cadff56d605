"""Read and write networks as Icechunk commits over Zarr: manifest, runs, export and backup; no cluster."""
