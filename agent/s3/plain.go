package s3

// Bounds of the XML in a page: each tag, attribute and level costs a few bytes to send, and
// many to decode.
const (
	maxTag   = 4 << 10
	maxTags  = 20 * maxEntries
	maxDepth = 16
)

// plain reports whether XML is as simple as that of a listing, before it is decoded: short
// tags, not too many, that are not nested deeply, and nothing but tags after the declaration: a
// quote in a comment does not hide the tags after it from a decoder.
func plain(raw []byte) bool {
	depth, tags := 0, 0
	for i := 0; i < len(raw); i++ {
		if raw[i] != '<' {
			continue
		}
		end := tagEnd(raw[i+1:])
		if end < 1 { // a tag has a name
			return false
		}
		switch first, last := raw[i+1], raw[i+end]; {
		case first == '/':
			depth--
		case first == '!' || first == '?' && tags > 0:
			return false
		case first == '?' || last == '/':
		default:
			depth++
		}
		if tags++; tags > maxTags || depth > maxDepth {
			return false
		}
		i += end + 1
	}
	return true
}

// tagEnd returns the index of the > that ends a tag, which is not between quotes; -1 if the
// tag is too long or does not end.
func tagEnd(raw []byte) int {
	quote := byte(0)
	for i, b := range raw[:min(len(raw), maxTag)] {
		switch {
		case quote != 0:
			if b == quote {
				quote = 0
			}
		case b == '"' || b == '\'':
			quote = b
		case b == '>':
			return i
		}
	}
	return -1
}
