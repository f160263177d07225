package grammar

import (
	"fmt"
	"strings"
	"testing"
)

// TestAVocabularyOfLongTokensIsBounded: the longest tokens are not used under a constraint if all
// together would take too much memory; the others are.
func TestAVocabularyOfLongTokensIsBounded(t *testing.T) {
	const long = 20_000
	v := NewVocabulary(long+10, func(id int32) []byte {
		if id < 10 {
			return []byte{byte('0' + id)}
		}
		return fmt.Appendf(nil, "%05d%s", id, strings.Repeat("x", 500))
	})
	if most := int64(48 << 20); v.Bytes() > most {
		t.Errorf("it takes %d bytes, want at most %d", v.Bytes(), most)
	}
	if n := v.nodes(); n != 10 {
		t.Errorf("it has %d nodes, want one for each short token", n)
	}
}
