"""Files -> documents -> sentences -> shards -> rows, with numpy and pyarrow only: never torch."""
