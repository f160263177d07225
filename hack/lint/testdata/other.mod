module b.test/b

go 1.26.0

require x.test/a v1.2.0 // indirect

require (
	x.test/b v1.3.0
	x.test/c v1.4.0 // indirect
	x.test/d v1.0.0
)

replace x.test/b => x.test/b v1.0.0

replace (
	x.test/e => x.test/e v1.9.0
)
