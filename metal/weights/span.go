package weights

import "cmp"

// span is a run of bytes in one of a model's files.
type span struct {
	// file is its index in File.sources.
	file int
	// offset is absolute in the file.
	offset, bytes int64
}

func (s span) compare(o span) int {
	return cmp.Or(cmp.Compare(s.file, o.file), cmp.Compare(s.offset, o.offset), cmp.Compare(s.bytes, o.bytes))
}

// rows is the part of n rows from first on, of this many bytes each.
func (s span) rows(first, n, bytes int64) span {
	return span{s.file, s.offset + first*bytes, n * bytes}
}
