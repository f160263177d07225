module example.test/guarded

go 1.26.0
